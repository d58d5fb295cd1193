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
from hill.data.records import is_writable
from hill.decode import Calibrator, DecodeConfig, Decoder, hold, read_calibrator, tune
from hill.errors import DataError
from hill.metrics import Scorer
from hill.metrics.blocks import alike
from hill.metrics.calibration import Calibration, mean_over_levels
from hill.metrics.sparse import look_up
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import documents_of, join_tables, places_of
from hill.types import FloatArray, IntArray, Prediction

Scored = tuple[IntArray, Any]
"""Numbers of some documents (n) and their scores (n, L): an array of float32, or a `csr_array` of those that are kept,
the others counting as 0."""
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
        """The model's own scores between 0 and 1 of every text, some texts at a time, in any order.

        Where `decode.keep` says so, or by default with very many labels, they are sparse.
        """

    def predict_proba(self, texts: Sequence[str]) -> Any:
        """Calibrated scores (texts, L) between 0 and 1 that, unless decoding is raw, never rise on the way down.

        An array, or a `csr_array` where not all scores are kept: those that are missing count as 0.
        """
        decoder = self.decoder()
        found = ((documents, decoder.effective(scores)) for documents, scores in self.scores(texts))
        return join_tables(found, (len(texts), len(self.taxonomy)))

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
            cells = chosen_cells(*decoder.decide(scores))
            bounds = np.searchsorted(cells[0], np.arange(len(documents) + 1)).tolist()
            for place, document in enumerate(documents.tolist()):
                own = slice(bounds[place], bounds[place + 1])
                found[document] = self._prediction(cells[1][own].tolist(), cells[2][own].tolist())
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
            gold, _ = alike(labels[documents].astype(bool), scores)
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

    def _prediction(self, rows: list[int], scores: list[float]) -> Prediction:
        inside = {parent for row in rows for parent in self.taxonomy.parents(row).tolist()}
        ends = sorted((-score, row) for row, score in zip(rows, scores, strict=True) if row not in inside)
        paths = [next(self.taxonomy.paths(row)) for _, row in ends]
        return Prediction(
            tuple(self.taxonomy.decode(rows)),
            tuple(scores),
            tuple(tuple(self.taxonomy.decode(path)) for path in paths),
        )


def chosen_cells(chosen: Any, effective: Any) -> tuple[IntArray, IntArray, npt.NDArray[np.float32]]:
    """The place of the document (ascending), the label and the score of every label chosen: tables (n, L) of one kind.

    >>> chosen_cells(np.array([[True, False], [True, True]]), np.array([[0.9, 0.1], [0.8, 0.7]]))
    (array([0, 1, 1]), array([0, 0, 1]), array([0.9, 0.8, 0.7]))
    """
    if not isinstance(chosen, csr_array):
        documents, labels = np.nonzero(chosen)
        return documents, labels, effective[documents, labels]
    return documents_of(chosen), chosen.indices.astype(np.int64), look_up(effective, places_of(chosen))


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """These texts, or a `DataError` that names the first that is empty or no text."""
    if isinstance(texts, str):
        raise DataError("texts is one string; expected a list of texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {number} is {'empty' if isinstance(text, str) else repr(text)}; expected words")
        if not is_writable(text):
            raise DataError(f"text {number} has half of a character (a lone surrogate); expected Unicode text")
    return texts


def _raw(result: dict[str, Any]) -> dict[str, float]:
    """What the scores alone give at 0.5, as the paper decodes them."""
    return {f"raw_{name}": result[name] for name in RAW}
