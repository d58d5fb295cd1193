"""Kept: a classifier in a folder, in a pickle, or on a model hub. None of its files is ever run."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download

from hill.errors import CheckpointError, HillError
from hill.guard import check_model, read_object, unusable
from hill.hub.card import make_card
from hill.hub.facts import FILE, Facts
from hill.hub.front import public
from hill.models.base import COUNTS_FILE
from hill.predictor import Predictor
from hill.train.store import Stored, load_stored
from hill.types import FloatArray

CARD = "README.md"
FETCHED = ["*.json", "*.safetensors", CARD]
"""What is fetched from a repository: nothing that could be run."""

if hasattr(os, "register_at_fork"):  # torch's threads are not there after a fork, and it would wait for them for ever
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


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
        """The classifier that `save` wrote; whatever is wrong with the folder is a `HillError`."""
        check_model(Path(folder))
        try:
            return cls._load(Path(folder), device)
        except HillError:
            raise
        except Exception as error:  # of whichever kind: the files may be anyone's, and hold anything
            raise unusable(folder, error) from error

    @classmethod
    def _load(cls, place: Path, device: str) -> Self:
        loaded = cls.restore(load_stored(place), device)
        loaded.set_thresholds(read_object(place / "thresholds.json"))
        _check_thresholds(loaded.thresholds, len(loaded.taxonomy))
        loaded.metrics = read_object(place / "metrics.json")
        loaded.noted = read_object(place / FILE) if (place / FILE).exists() else {}
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


def _check_thresholds(found: FloatArray | None, labels: int) -> None:
    if found is not None and (found.shape != (labels,) or found.dtype.kind not in "fi"):
        raise CheckpointError(f"thresholds.json has no number for each of the {labels:,} labels; copy it again")


def _unnamed(document: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an encoder without the place it was loaded from."""
    return {key: value for key, value in document.items() if key != "_name_or_path"}
