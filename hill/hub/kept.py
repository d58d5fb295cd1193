"""Kept: a classifier in a folder, in a pickle, or on a model hub. None of its files is ever run."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from hill.errors import CheckpointError
from hill.hub.card import make_card
from hill.hub.facts import FILE, Facts
from hill.hub.front import public
from hill.models.base import COUNTS_FILE
from hill.predictor import Predictor
from hill.train.files import read_json
from hill.train.store import Stored, load_stored

CARD = "README.md"
FETCHED = ["*.json", "*.safetensors", CARD]
"""What is fetched from a repository: nothing that could be run."""


class Kept(Predictor, ModelHubMixin):
    """A predictor that can be saved, loaded and published."""

    metrics: dict[str, Any]
    noted: dict[str, Any]
    """What was noted of its training, for the model card."""

    @property
    @abstractmethod
    def stored(self) -> Stored:
        """The model with what it is used with."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Most tokens of a text that are read at a time."""

    @classmethod
    @abstractmethod
    def restore(cls, stored: Stored, device: str) -> Self:
        """The predictor that has this model, on a device."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that predicting needs to a folder, whole or not at all."""
        self.stored.save(Path(folder), self._documents())

    def _documents(self) -> dict[str, Any]:
        noted = {FILE: self.noted} if self.noted else {}
        return {"thresholds.json": self.thresholds_document(), "metrics.json": self.metrics, **noted}

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Self:
        """The classifier that `save` wrote."""
        place = Path(folder)
        _refuse_code(place / "encoder" / "config.json")
        loaded = cls.restore(load_stored(place), device)
        loaded.set_thresholds(read_json(place / "thresholds.json"))
        loaded.metrics = read_json(place / "metrics.json")
        loaded.noted = read_json(place / FILE) if (place / FILE).exists() else {}
        return loaded

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model card, from what is known of the model."""
        stored = self.stored
        counts = stored.model.assets.get(COUNTS_FILE)
        support = None if counts is None else np.array(counts)
        facts = Facts(stored.name, stored.settings, stored.taxonomy, self.metrics, self.noted, support)
        return ModelCard(make_card(facts))

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        config: None = None,
        model_card_kwargs: None = None,
        **options: Any,
    ) -> str | None:
        """Save to a folder with a model card; of paths on this machine no more than the last name is kept."""
        folder, stored = Path(save_directory), self.stored
        texts = {name: _unnamed(document) for name, document in stored.model.text.documents().items()}
        replace(stored, settings=public(stored.settings)).save(folder, self._documents() | texts)
        self.generate_model_card().save(folder / CARD)
        return self.push_to_hub(repo_id or folder.name, **options) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, device: str = "auto", **options: Any
    ) -> Self:
        """The classifier of a folder, or of a repository on the hub; options as for `snapshot_download`."""
        place = os.fspath(pretrained_model_name_or_path)
        if not Path(place).is_dir():
            try:
                place = snapshot_download(place, allow_patterns=FETCHED, **options)
            except (OSError, ValueError) as error:
                reason = str(error).strip().split("\n")[0][:200]
                raise CheckpointError(f"'{place}' is no folder, and the hub does not give it: {reason}") from None
        return cls.load(place, device)


def _refuse_code(file: Path) -> None:
    """Raise if an encoder can be made only by code that comes with it: transformers would offer to run that."""
    config = read_json(file) if file.exists() else {}
    if "auto_map" in config and config.get("model_type") not in MODEL_MAPPING_NAMES:
        raise CheckpointError(
            f"'{file}' is of type {config.get('model_type')!r} and names code of its own, which is never run; "
            "expected an encoder that transformers has itself"
        )


def _unnamed(document: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an encoder without the place it was loaded from."""
    return {key: value for key, value in document.items() if key != "_name_or_path"}
