"""The rows of the tables: the settings of each come from a TOML file, or from another row with a few changes."""

import dataclasses
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from hill.classifier import GROUPS, config_types
from hill.errors import ConfigError
from hill.models import MODELS
from hill.settings import Groups, check_one_of, make, read_settings, to_dict
from hill.taxonomy import Taxonomy
from hill.tree import build_tree


@dataclass(frozen=True)
class Difference:
    """How a row without a file differs from the row it is derived from: the model, and the settings that change."""

    base: str | None
    model: str
    settings: Groups = field(default_factory=dict)


HEIGHTS = range(1, 7)
TREES = ("paper", "authors", "refined", "random", "taxonomy")
RCNN: Groups = {"model": {"text": "rcnn"}}
TIMED: Groups = {
    "train": {
        "batch_size": 16,
        "epochs": 20,
        "patience": 20,
        "encoder_lr": 3e-5,
        "lr": 3e-5,
        "classifier_lr": 0.0,
        "warmup": 0.0,
        "schedule": "constant",
        "head_start": "off",
        "checkpoint_seconds": 1e9,
    }
}
"""The protocol of the released code: batch 16, 20 epochs, learning rate 3e-5 for all weights, no warm-up, no saving."""
PAPER: Groups = {"model": {"leaf_units": 0, "name_weight": 0.0, "contrast": 0.1, "negatives": "all"}}
"""HILL without our additions."""
DIFFERENCES: dict[str, Difference] = {
    "hill": Difference(None, "hill"),
    "linear": Difference("hill", "linear"),
    "flat": Difference("hill", "flat"),
    "flat-conditional": Difference("flat", "flat", {"model": {"loss": "conditional-softmax", "adjust": 1.0}}),
    "hgclr": Difference("flat", "hgclr"),
    "hiagm": Difference("hill", "hiagm"),
    "htcinfomax": Difference("hill", "htcinfomax"),
    "himatch": Difference("hill", "himatch"),
    "hitin": Difference("hill", "hitin"),
    "textrcnn": Difference("hill", "textrcnn", {"train": {"lr": 1e-3, "batch_size": 64, "epochs": 30, "patience": 5}}),
    "hiagm-rcnn": Difference("textrcnn", "hiagm", RCNN),
    "htcinfomax-rcnn": Difference("textrcnn", "htcinfomax", RCNN),
    "himatch-rcnn": Difference("textrcnn", "himatch", RCNN),
    "hitin-rcnn": Difference("textrcnn", "hitin", RCNN),
    **{f"hill-{layer}": Difference("hill", "hill", {"model": {"structure": layer}}) for layer in ("gin", "gat", "gcn")},
    "hill-no-contrast": Difference("hill", "hill", {"model": {"contrast": 0.0}}),
    **{f"hill-height-{height}": Difference("hill", "hill", {"model": {"height": height}}) for height in HEIGHTS},
    **{f"hill-tree-{method}": Difference("hill", "hill", {"model": {"method": method}}) for method in TREES},
    "hill-rcnn": Difference("textrcnn", "hill", RCNN),
    "hill-timed": Difference("hill", "hill", {**PAPER, **TIMED}),
    "hgclr-timed": Difference("hgclr", "hgclr", {"model": {"layers": 2}, **TIMED}),
}
TABLES: dict[str, dict[str, str]] = {
    "main-table": {
        "linear": "TF-IDF + linear SVM",
        "textrcnn": "TextRCNN",
        "hiagm-rcnn": "HiAGM",
        "htcinfomax-rcnn": "HTCInfoMax",
        "himatch-rcnn": "HiMatch",
        "flat": "BERT",
        "hiagm": "BERT+HiAGM",
        "htcinfomax": "BERT+HTCInfoMax",
        "himatch": "BERT+HiMatch",
        "hgclr": "HGCLR",
        "hitin": "BERT+HiTIN",
        "flat-conditional": "BERT, conditional softmax",
        "hill": "HILL",
    },
    "ablation": {
        "hill": "HILL",
        "hill-gin": "r.p. GIN",
        "hill-gat": "r.p. GAT",
        "hill-gcn": "r.p. GCN",
        "hill-no-contrast": "r.m. L_clr",
        "hill-height-1": "r.m. Algorithm 1",
    },
    "heights": {f"hill-height-{height}": f"K = {height}" for height in HEIGHTS},
    "trees": {f"hill-tree-{method}": f"{method} tree" for method in TREES},
    "questions": {
        "textrcnn": "TextRCNN",
        "hill-rcnn": "HILL on TextRCNN",
        "flat": "BERT",
        "hill": "HILL",
    },
    "cost": {"hill-timed": "HILL", "hgclr-timed": "HGCLR"},
}
"""The rows of each table with their titles in the paper. BERT stands for the encoder in use."""
REFERENCES = {"cost": "hill-timed"}
"""The row that the others are tested against, if it is not HILL."""
PUBLISHED = Path(__file__).parent / "settings"
"""One folder per data set with one TOML file per row."""


@dataclass(frozen=True)
class ExperimentRow:
    """A row of a table: title, model, all settings, and the name of its runs."""

    name: str
    title: str
    model: str
    settings: Groups
    run: str
    """`hill` if the settings equal those of HILL, for example at its own height: it is not trained twice."""


def rows_folder(data: Path, given: Path | None = None) -> Path | None:
    """The folder with the settings of the rows: the given one, else the published one for data of this name, if any."""
    if given and not given.is_dir():
        raise ConfigError(f"--rows '{given}' is not a folder; expected one with files such as hill.toml")
    published = PUBLISHED / data.resolve().name
    return given or (published if published.is_dir() else None)


def table_rows(
    table: str, folder: Path | None, encoder: str | None = None, assignments: Iterable[str] = ()
) -> list[ExperimentRow]:
    """The rows of a table with all settings. The encoder and assignments given here override those of the files."""
    check_one_of(table, TABLES, "experiment")
    given = read_settings(None, assignments, GROUPS)
    models = {name: _row_settings(name, folder)[0] for name in TABLES[table]}
    known = {name for model in models.values() for name in _fields(MODELS[model].Config)}
    for key in given["model"]:
        check_one_of(key, sorted(known), "setting of model")
    hill = _complete("hill", folder, encoder, given)
    rows = []
    for name, title in TABLES[table].items():
        settings = _complete(name, folder, encoder, given)
        run = "hill" if models[name] == "hill" and settings == hill else name
        rows.append(ExperimentRow(name, title, models[name], settings, run))
    return rows


def share_trees(rows: list[ExperimentRow], taxonomy: Taxonomy) -> list[ExperimentRow]:
    """Let rows that differ from HILL only in the builder, and whose builder gives the same tree, share its runs."""
    hill = next((row for row in rows if row.run == "hill"), None)
    if hill is None or hill.settings["model"]["structure"] != "tree":
        return rows
    hill_model, shared = hill.settings["model"], []
    for row in rows:
        model = row.settings["model"]
        with_builder = row.settings | {"model": model | {"method": hill_model["method"]}}
        if row.model == hill.model and row.run != hill.run and with_builder == hill.settings:
            tree, hill_tree = (
                build_tree(taxonomy, each["height"], each["method"]).tree for each in (model, hill_model)
            )
            if tree == hill_tree:
                title = f"{row.title} = {hill.title}"
                row = dataclasses.replace(row, title=title, settings=hill.settings, run=hill.run)
        shared.append(row)
    return shared


def reference_row(table: str, rows: Iterable[ExperimentRow]) -> str | None:
    """The name of the row that the others are tested against: HILL, whatever its name in this table."""
    return next((row.name for row in rows if row.run == REFERENCES.get(table, "hill")), None)


def _row_settings(name: str, folder: Path | None) -> tuple[str, Groups]:
    """The model of a row, and its settings that differ from the defaults."""
    difference = DIFFERENCES[name]
    file = folder / f"{name}.toml" if folder else None
    if file and file.is_file():
        settings = read_settings(file, [], GROUPS)
        return settings["model"].pop("name", difference.model), settings
    base_model, base = _row_settings(difference.base, folder) if difference.base else (difference.model, {})
    settings = deepcopy(base)
    if base_model != difference.model:
        # Settings mean the same to both models if they belong to the config class that both share.
        wanted = MODELS[difference.model].Config
        common = next(kind for kind in MODELS[base_model].Config.__mro__ if issubclass(wanted, kind))
        shared = _fields(common) - {"text"}
        settings["model"] = {key: value for key, value in base.get("model", {}).items() if key in shared}
    for group, values in difference.settings.items():
        settings.setdefault(group, {}).update(values)
    return difference.model, {"model": {}, **settings}


def _complete(name: str, folder: Path | None, encoder: str | None, given: Groups) -> Groups:
    """All settings of a row, checked.

    Settings given for all rows do not override what makes a row differ from its base, and a model ignores those that it
    does not have. The second decoding of a row gives consistent label sets with a threshold tuned on dev.
    """
    model, settings = _row_settings(name, folder)
    kind = MODELS[model].Config
    merged = {group: {**settings.get(group, {}), **given[group]} for group in GROUPS}
    merged["model"] |= DIFFERENCES[name].settings.get("model", {})
    if encoder is not None and merged["model"].get("text", kind.text) == "transformer":
        merged["model"]["encoder"] = encoder
    known = _fields(kind) | settings["model"].keys()
    merged["model"] = {key: value for key, value in merged["model"].items() if key in known}
    decode = {"strategy": "closure", "tune": "global", "calibrate": "off", **merged["decode"]}
    if decode["strategy"] == "raw":
        decode["strategy"] = "closure"
    if decode["tune"] == "off":
        decode["tune"] = "global"
    merged["decode"] = decode
    return {group: to_dict(make(kind, merged[group], group)) for group, kind in config_types(model).items()}


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
