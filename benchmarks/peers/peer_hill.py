"""hill: the presets auto and fast, and the linear model, as `hill train` runs them. There is no grid.

On a CPU, auto and fast get the time limit --minutes.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from common import SEED, Peer, Scores, Sets, main

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.settings import Groups


class Hill(Peer):
    """A model of hill; it chooses thresholds on dev itself."""

    PACKAGES = ("torch", "transformers")
    MODEL: ClassVar[str] = "hill"
    PRESET: ClassVar[str | None] = "auto"

    def grid(self) -> list[dict[str, Any]]:
        """One setting."""
        limited = self.task.device == "cpu" and self.MODEL == "hill"
        return [{"preset": self.PRESET} | ({"minutes": self.task.minutes} if limited else {})]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Train, with dev."""
        groups: Groups = {"train": {"seed": SEED, "checkpoint_seconds": 1e9, "device": self.task.device}, "model": {}}
        if self.MODEL == "hill":
            groups["model"]["encoder"] = self.task.encoder
        if "minutes" in settings:
            groups["train"]["minutes"] = settings["minutes"]
        classifier = HillClassifier(self.task.taxonomy, self.MODEL, groups, self.PRESET)
        with TemporaryDirectory() as folder:
            for event in classifier.training({"train": train, "dev": self.task.dev}, Path(folder)):
                logging.debug("%s", event)
        return classifier

    def sets(self, model: Any, texts: Sequence[str]) -> Sets:
        """The label sets that `predict` gives."""
        found = model.predict_indicator(texts)
        dense: Sets = np.asarray(found.toarray() if hasattr(found, "toarray") else found).astype(bool)
        return dense

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities."""
        return np.asarray(model.predict_proba(texts), dtype=np.float32)

    def save(self, model: Any, folder: Path) -> None:
        """The folder of a saved model."""
        model.save(folder / "model")


class HillFast(Hill):
    """The preset fast."""

    PRESET = "fast"


class HillLinear(Hill):
    """The linear model."""

    MODEL = "linear"
    PRESET = None


if __name__ == "__main__":
    main({"hill-auto": Hill, "hill-fast": HillFast, "hill-linear": HillLinear})
