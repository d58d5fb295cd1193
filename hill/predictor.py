"""Predictor: what every trained model does, however its scores are computed: predict and evaluate."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.data import Documents, read_data
from hill.decode import Calibrator, DecodeConfig, Decoder, hold, read_calibrator, tune
from hill.errors import DataError
from hill.metrics import Scorer
from hill.metrics.calibration import Calibration, mean_over_levels
from hill.taxonomy import Taxonomy
from hill.types import FloatArray, IntArray, Prediction

Scored = tuple[IntArray, npt.NDArray[np.float32]]
"""Numbers of some documents (n) and their scores (n, L)."""
CHOSEN = ("strategy", "threshold", "tune", "tune_metric", "calibrate")
"""Settings of decoding that are chosen on dev."""
RAW = ("micro_f1", "macro_f1", "hierarchical_f1", "violations", "ece", "ece_levels")
"""Metrics that are also given for the scores alone."""


class Predictor(ABC):
    """Turns texts into scores, and scores into labels that respect the taxonomy."""

    taxonomy: Taxonomy
    decode_config: DecodeConfig
    thresholds: FloatArray | None
    """One threshold for each label (L), where they are not all the same."""
    calibrator: Calibrator | None = None
    """What makes the model's scores probabilities, where it was fitted."""

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The model's own scores between 0 and 1 of every text, some texts at a time, in any order."""

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Calibrated scores (texts, L) between 0 and 1 that, unless decoding is raw, never rise on the way down."""
        decoder = self.decoder()
        found = np.zeros((len(texts), len(self.taxonomy)), dtype=np.float32)
        for documents, scores in self.scores(texts):
            found[documents] = decoder.effective(scores)
        return found

    def predict(self, texts: Sequence[str]) -> list[list[str]]:
        """The label ids of each text, ancestors included, in the taxonomy's order."""
        return [list(prediction.labels) for prediction in self.predictions(texts)]

    def predict_paths(self, texts: Sequence[str]) -> list[list[tuple[str, ...]]]:
        """The paths of label ids of each text, from a root down to each most specific label."""
        return [list(prediction.paths) for prediction in self.predictions(texts)]

    def predictions(self, texts: Sequence[str]) -> list[Prediction]:
        """Labels, scores and paths of each text."""
        decoder = self.decoder()
        found: list[Prediction] = [Prediction((), (), ())] * len(texts)
        for documents, scores in self.scores(texts):
            chosen, effective = decoder.decide(scores)
            for place, document in enumerate(documents.tolist()):
                found[document] = self._prediction(np.flatnonzero(chosen[place]), effective[place])
        return found

    def evaluate(self, data: Documents | str | os.PathLike[str]) -> dict[str, Any]:
        """Every metric of the predictions for these documents; of a folder, of its test split."""
        if not isinstance(data, Documents):
            splits = read_data(data, self.taxonomy)
            data = splits.get("test") or next(iter(splits.values()))
        return self.measure(self.scores(data.texts), data.labels)

    def measure(self, scored: Iterable[Scored], labels: csr_array[Any]) -> dict[str, Any]:
        """Every metric of documents with these scores, against their labels (documents, L).

        Those of scores are of what `predict_proba` gives; with `raw_`, of the model's own.
        """
        decoder, scorer, raw = self.decoder(), Scorer(self.taxonomy), Scorer(self.taxonomy)
        raw_calibration = Calibration(self.taxonomy)
        for documents, scores in scored:
            gold = labels[documents].toarray().astype(bool)
            scorer.update(gold, *decoder.decide(scores))
            raw.update(gold, scores > 0.5)
            raw_calibration.update(gold, scores)
        found = scorer.result()
        found |= {"ece_levels": mean_over_levels(found["levels"]), "threshold": self.decode_config.threshold}
        return found | _raw(raw.result() | raw_calibration.ece())

    def tune(self, scored: Iterable[Scored], labels: csr_array[Any]) -> None:
        """Choose what is best for documents with these scores and labels (documents, L), as configured.

        Afterwards the settings of decoding say what was chosen in place of any `auto`.
        """
        if self.decode_config.tunable:
            tuned = tune(self.taxonomy, self.decode_config, hold(scored, labels))
            self.decode_config, self.thresholds, self.calibrator = tuned.config, tuned.thresholds, tuned.calibrator

    def thresholds_document(self) -> dict[str, Any]:
        """All that was chosen for decoding, as plain values."""
        config = self.decode_config
        found: dict[str, Any] = {key: getattr(config, key) for key in CHOSEN}
        if self.thresholds is not None:
            found["labels"] = self.thresholds.tolist()
        if self.calibrator is not None:
            found["calibrator"] = self.calibrator.document()
        return found

    def set_thresholds(self, found: dict[str, Any]) -> None:
        """Take what `thresholds_document` gave; what was saved before there was calibration is not calibrated."""
        chosen = {"calibrate": "off"} | {key: found[key] for key in CHOSEN if key in found}
        self.decode_config = replace(self.decode_config, **chosen)
        self.thresholds = np.array(found["labels"]) if "labels" in found else None
        self.calibrator = read_calibrator(found["calibrator"], self.taxonomy) if "calibrator" in found else None

    def decoder(self) -> Decoder:
        """What turns this model's scores into label sets."""
        return Decoder(self.taxonomy, self.decode_config, self.thresholds, self.calibrator)

    def _prediction(self, rows: IntArray, scores: npt.NDArray[Any]) -> Prediction:
        chosen = set(rows.tolist())
        ends = [row for row in rows.tolist() if chosen.isdisjoint(self.taxonomy.children(row).tolist())]
        paths = [next(self.taxonomy.paths(row)) for row in sorted(ends, key=lambda row: -scores[row])]
        return Prediction(
            tuple(self.taxonomy.decode(rows)),
            tuple(float(scores[row]) for row in rows),
            tuple(tuple(self.taxonomy.decode(path)) for path in paths),
        )


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """These texts, or a `DataError` that names the first that is empty or no text."""
    if isinstance(texts, str):
        raise DataError("texts is one string; expected a list of texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {number} is {'empty' if isinstance(text, str) else repr(text)}; expected words")
    return texts


def _raw(result: dict[str, Any]) -> dict[str, float]:
    """What the scores alone give at 0.5, as the paper decodes them."""
    return {f"raw_{name}": result[name] for name in RAW}
