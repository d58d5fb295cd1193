"""The rows of a table with all their settings: from a file of their own, or derived from another row's."""

import dataclasses
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hill.classifier import GROUPS, DataConfig
from hill.decode import DecodeConfig
from hill.errors import ConfigError
from hill.experiment.tables import DIFFERENCES, REFERENCES, TABLES
from hill.models import MODELS
from hill.settings import Groups, document, make, one_of, read_settings
from hill.taxonomy import Taxonomy
from hill.train import TrainConfig
from hill.tree import build_tree

PUBLISHED = Path(__file__).parents[2] / "experiments"


@dataclass(frozen=True)
class Row:
    """A row of a table: its title, its model, all its settings, and the name under which its runs are kept."""

    name: str
    title: str
    model: str
    settings: Groups
    run: str
    """`hill` where the settings are HILL's own, such as at its own height: it is not trained twice."""


def rows_folder(data: Path, given: Path | None = None) -> Path | None:
    """The folder of rows that was given, or the published one for data of this name; none where there is none."""
    if given and not given.is_dir():
        raise ConfigError(f"--rows '{given}' is no folder; expected one with files such as hill.toml")
    published = PUBLISHED / data.resolve().name
    return given or (published if published.is_dir() else None)


def table_rows(
    table: str, folder: Path | None, encoder: str | None = None, assignments: Iterable[str] = ()
) -> list[Row]:
    """The rows of a table in its order, with every setting; what is given here wins over the files."""
    one_of(table, TABLES, "experiment")
    given = read_settings(None, assignments, GROUPS)
    models = {name: _row_settings(name, folder)[0] for name in TABLES[table]}
    _check_known(given["model"], models.values())
    own = _complete("hill", folder, encoder, given)
    rows = []
    for name, title in TABLES[table].items():
        settings = _complete(name, folder, encoder, given)
        run = "hill" if models[name] == "hill" and settings == own else name
        rows.append(Row(name, title, models[name], settings, run))
    return rows


def share_trees(rows: list[Row], taxonomy: Taxonomy) -> list[Row]:
    """The rows, where another builder gives the very tree of HILL with HILL's run: it is not trained twice."""
    own = next((row for row in rows if row.run == "hill"), None)
    if own is None or own.settings["model"]["structure"] != "tree":
        return rows
    return [_shared_run(row, own) if _is_same_but_for_builder(row, own, taxonomy) else row for row in rows]


def _shared_run(row: Row, own: Row) -> Row:
    return dataclasses.replace(row, title=f"{row.title} = {own.title}", settings=own.settings, run=own.run)


def _is_same_but_for_builder(row: Row, own: Row, taxonomy: Taxonomy) -> bool:
    """Whether a row differs from HILL in the method alone, and this method builds the same tree."""
    if row.model != own.model or row.run == own.run:
        return False
    model, wanted = row.settings["model"], own.settings["model"]
    if row.settings | {"model": model | {"method": wanted["method"]}} != own.settings:
        return False
    trees = [build_tree(taxonomy, each["height"], each["method"]).tree for each in (model, wanted)]
    return trees[0] == trees[1]


def reference_row(table: str, rows: Iterable[Row]) -> str | None:
    """The name of the row that the others are tested against: HILL, under whatever name it stands in this table."""
    return next((row.name for row in rows if row.run == REFERENCES.get(table, "hill")), None)


def _row_settings(name: str, folder: Path | None) -> tuple[str, Groups]:
    """Model and settings that a row has beyond the defaults."""
    difference = DIFFERENCES[name]
    file = folder / f"{name}.toml" if folder else None
    if file and file.is_file():
        settings = read_settings(file, [], GROUPS)
        return settings["model"].pop("name", difference.model), settings
    base_model, base = _row_settings(difference.base, folder) if difference.base else (difference.model, {})
    settings = deepcopy(base)
    settings["model"] = _shared(base_model, difference.model, base.get("model", {}))
    for group, values in difference.settings.items():
        settings.setdefault(group, {}).update(values)
    return difference.model, settings


def _shared(base: str, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of one model that mean the same to another: those of the config that both are kinds of."""
    if base == model:
        return dict(settings)
    wanted = MODELS[model].Config
    common = next(kind for kind in MODELS[base].Config.__mro__ if issubclass(wanted, kind))
    names = _fields(common).keys() - {"text"}
    return {key: value for key, value in settings.items() if key in names}


def _check_known(given: dict[str, Any], models: Iterable[str]) -> None:
    """Raise if no model of a table has a setting that was given for all."""
    known = {name for model in models for name in _fields(MODELS[model].Config)}
    for key in given:
        one_of(key, sorted(known), "setting of model")


def _complete(name: str, folder: Path | None, encoder: str | None, given: Groups) -> Groups:
    """Every setting of a row, checked.

    What is given for all rows leaves alone what makes a row differ from the one it is compared with, and what its model
    does not know.
    """
    model, settings = _row_settings(name, folder)
    kind = MODELS[model].Config
    merged = {group: {**settings.get(group, {}), **given[group]} for group in GROUPS}
    merged["model"] |= DIFFERENCES[name].settings.get("model", {})
    if encoder and merged["model"].get("text", kind.text) == "transformer":
        merged["model"]["encoder"] = encoder
    merged["model"] = {key: value for key, value in merged["model"].items() if key in _fields(kind) | settings["model"]}
    merged["decode"] = _decoding(merged["decode"])
    kinds: tuple[type, ...] = (kind, TrainConfig, DataConfig, DecodeConfig)
    return {group: document(make(kind, merged[group], group)) for group, kind in zip(GROUPS, kinds, strict=True)}


def _fields(kind: type) -> dict[str, None]:
    return dict.fromkeys(field.name for field in dataclasses.fields(kind))


def _decoding(settings: dict[str, Any]) -> dict[str, Any]:
    """The decoding that a row has beside the paper's: consistent, at a threshold tuned on dev, scores as they are."""
    given = {"strategy": "closure", "tune": "global", "calibrate": "off", **settings}
    better = {"strategy": "closure"} if given["strategy"] == "raw" else {}
    return {**given, **better, **({"tune": "global"} if given["tune"] == "off" else {})}
