"""A saved model: taxonomy, tokenizer, config and weights in one folder, without pickle."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hill.errors import CheckpointError, HillError
from hill.guard import check_model, unusable
from hill.models import MODELS, HTCModel, ModelConfig
from hill.models.text import empty_text
from hill.nn.pretrained import plain
from hill.settings import Groups, make
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.taxonomy.nested import taxonomy_document
from hill.train.files import SUMS, check_folder, load_weights, read_json, read_tensors, write_folder

FORMAT = "hill-model"
VERSION = 1
WEIGHTS = "model.safetensors"
GONE = {"leaves": "none"}
"""Settings of models that are no more, with the value at which a model is the same without them."""


@dataclass(frozen=True)
class Stored:
    """A model with what it is used with: its taxonomy, its tokenizer, and the settings of all groups."""

    name: str
    model: HTCModel
    taxonomy: Taxonomy
    tokenizer: Tokenizer
    settings: Groups

    def save(self, folder: Path, documents: dict[str, Any]) -> None:
        """Write everything, with these documents beside it, whole or not at all."""
        config = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.name,
            "pooling": self.model.text.pooling,
            "settings": self.settings,
            "assets": sorted(self.model.assets),
        }
        files = {
            "config.json": config,
            "taxonomy.json": taxonomy_document(self.taxonomy),
            "tokenizer.json": json.loads(self.tokenizer.to_str()),
        }
        weights = {WEIGHTS: {name: value.cpu() for name, value in self.model.state_dict().items()}}
        write_folder(folder, weights, files | self.model.text.documents() | self.model.assets | documents)


def load_stored(folder: Path) -> Stored:
    """The model of a folder, on the CPU; a missing, damaged or foreign file is a `CheckpointError` that names it."""
    if not folder.is_dir():
        raise CheckpointError(f"model folder '{folder}' does not exist")
    check_model(folder)
    config = read_json(folder / "config.json")
    if config.get("format") != FORMAT or config.get("version") != VERSION:
        raise CheckpointError(
            f"'{folder / 'config.json'}' is of format {config.get('format')!r}, version {config.get('version')!r}; "
            f"this program reads {FORMAT!r}, version {VERSION}"
        )
    if (folder / SUMS).exists():  # models that were saved before there were sums have none
        check_folder(folder)
    try:
        return _build(folder, config)
    except HillError as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"'{folder}': {error}") from None
    except Exception as error:  # of whichever kind: the files may be anyone's, and hold anything
        raise unusable(folder, error) from error


def settings_now(saved: Groups, folder: Path) -> Groups:
    """The settings of a saved model as this program knows them."""
    model = dict(saved["model"])
    for name, value in GONE.items():
        if (found := model.pop(name, value)) != value:
            raise CheckpointError(
                f"'{folder}' was made with model.{name} = {found!r}, which is no more; train it anew, or use an "
                "earlier version of hill"
            )
    return {**saved, "model": model}


def _build(folder: Path, config: dict[str, Any]) -> Stored:
    kind, known = MODELS[config["model"]], settings_now(config["settings"], folder)
    taxonomy = read_taxonomy(folder / "taxonomy.json")
    settings: ModelConfig = make(kind.Config, known["model"], "model")
    tokenizer = plain(Tokenizer.from_file(str(folder / "tokenizer.json")))
    text = empty_text(settings, folder, tokenizer, config["pooling"])
    assets = {name: read_json(folder / name) for name in config["assets"]}
    model = kind(text, taxonomy, settings, assets)
    load_weights(model, read_tensors(folder / WEIGHTS), folder)
    return Stored(config["model"], model.eval(), taxonomy, tokenizer, known)
