"""Saved models: taxonomy, tokenizer, settings and weights in one folder, without pickle."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from hill.encoders.transformer import plain
from hill.errors import CheckpointError, HillError
from hill.io import (
    CARD,
    CHECKSUMS,
    check_folder,
    check_model,
    error_reason,
    finish_save,
    read_json,
    save_folder,
    unusable,
    write_json,
)
from hill.models import MODELS
from hill.models.base import HTCModel, ModelConfig, empty_text
from hill.settings import Groups, make
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.taxonomy.readers import taxonomy_document

MODEL_FORMAT = "hill-model"
MODEL_VERSION = 1
WEIGHTS = "model.safetensors"
REMOVED_SETTINGS: Groups = {
    "model": {
        "leaves": "none",
        **{"word_count": 2, "word_dropout": 0.5, "gru_layers": 1, "top": 1},
        **{"logit_dropout": 0.0, "heads": 0, "keep_temperature": 1.0},
    },
    "train": {"compile": False},
}
"""Settings of earlier versions, with the value that was made permanent."""


@dataclass(frozen=True)
class SavedModel:
    """A model with everything that it is used with: taxonomy, tokenizer, and the settings of all groups."""

    name: str
    model: HTCModel
    taxonomy: Taxonomy
    tokenizer: Tokenizer
    settings: Groups

    def save(self, folder: Path, documents: dict[str, Any], card: str = "") -> None:
        """Write the model, these JSON documents and the model card, completely or not at all.

        An earlier model in the folder is replaced; no other file is changed.
        """
        config_file = folder / "config.json"
        if os.path.isfile(config_file) and (found := read_json(config_file).get("format")) != MODEL_FORMAT:
            raise CheckpointError(f"'{folder}' has the format {found!r}; choose another folder for the model")
        config = {
            "format": MODEL_FORMAT,
            "version": MODEL_VERSION,
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
        with save_folder(folder) as draft:
            write_tensors(draft / WEIGHTS, {name: value.cpu() for name, value in self.model.state_dict().items()})
            for name, document in (files | self.model.text.documents() | self.model.assets | documents).items():
                (draft / name).parent.mkdir(exist_ok=True)
                write_json(draft / name, document)
            if card:
                (draft / CARD).write_text(card, encoding="utf-8")


def load_saved(folder: Path) -> SavedModel:
    """Load a saved model on the CPU; a missing, damaged or foreign file is a `CheckpointError` that names it."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"'{folder}' {state}; give the folder of a saved model")
    check_model(folder)
    finish_save(folder)
    config = read_json(folder / "config.json")
    if config.get("format") != MODEL_FORMAT or config.get("version") != MODEL_VERSION:
        raise CheckpointError(
            f"'{folder / 'config.json'}' has the format {config.get('format')!r}, version {config.get('version')!r}; "
            f"expected {MODEL_FORMAT!r}, version {MODEL_VERSION}"
        )
    if (folder / CHECKSUMS).exists():  # models of early versions have no checksums
        check_folder(folder)
    try:
        return _build(folder, config)
    except HillError as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"'{folder}': {error}") from None
    except Exception as error:  # any type: the files may come from anywhere
        raise unusable(folder, error) from error


def upgrade_settings(saved: Groups, folder: Path) -> Groups:
    """The settings of a saved model without those that were removed since.

    A removed setting of the model must not have been used: it changes what the model computes. Removed settings of
    training only say how the weights were found, so that their values do not matter.
    """
    upgraded = {group: dict(values) for group, values in saved.items()}
    for group, removed in REMOVED_SETTINGS.items():
        for name, unused in removed.items():
            value = upgraded.get(group, {}).pop(name, unused)
            if group == "model" and value != unused:
                raise CheckpointError(
                    f"'{folder}' was made with model.{name} = {value!r}, which is no more; train it anew, or use an "
                    "earlier version of hill"
                )
    return upgraded


def _build(folder: Path, config: dict[str, Any]) -> SavedModel:
    kind, settings = MODELS[config["model"]], upgrade_settings(config["settings"], folder)
    taxonomy = read_taxonomy(folder / "taxonomy.json")
    model_config: ModelConfig = make(kind.Config, settings["model"], "model")
    tokenizer = plain(Tokenizer.from_file(str(folder / "tokenizer.json")))
    text = empty_text(model_config, folder, tokenizer, config["pooling"])
    assets = {name: read_json(folder / name) for name in config["assets"]}
    model = kind(text, taxonomy, model_config, assets)
    weights = read_tensors(folder / WEIGHTS)
    _check_finite(weights, folder / WEIGHTS)
    load_weights(model, weights, folder)
    return SavedModel(config["model"], model.eval(), taxonomy, tokenizer, settings)


# Tensors


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file."""
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error_reason(error)}") from None


def load_weights(module: torch.nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Set the weights of a module; names and shapes must match exactly."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the weights in '{folder}' do not fit the model: {detail}") from None


def _check_finite(weights: Mapping[str, Tensor], file: Path) -> None:
    """Raise if a weight is infinite or NaN. The sum shows this in one pass, but the sum itself can overflow."""
    for name, weight in weights.items():
        if weight.is_floating_point() and not weight.sum().isfinite() and not weight.isfinite().all():
            raise CheckpointError(
                f"the weight '{name}' in '{file}' has a value that is infinite or not a number; copy the model again "
                "or train it again"
            )
