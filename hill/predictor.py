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
from hill.decode import DecodeConfig, Decoder, ThresholdTuner
from hill.errors import DataError
from hill.metrics import Scorer
from hill.taxonomy import Taxonomy
from hill.types import FloatArray, IntArray, Prediction

Scored = tuple[IntArray, npt.NDArray[np.float32]]
"""Numbers of some documents (n) and their scores (n, L)."""


class Predictor(ABC):
    """Turns texts into scores, and scores into labels that respect the taxonomy."""

    taxonomy: Taxonomy
    decode_config: DecodeConfig
    thresholds: FloatArray | None
    """One threshold for each label (L), where they are not all the same."""

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The model's own scores between 0 and 1 of every text, some texts at a time, in any order."""

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Scores (texts, L) between 0 and 1 that never rise on the way down the taxonomy."""
        decoder = self._decoder()
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
        decoder = self._decoder()
        found: list[Prediction] = [Prediction((), (), ())] * len(texts)
        for documents, scores in self.scores(texts):
            chosen, effective = decoder.decode(scores), decoder.effective(scores)
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
        """Every metric of documents with these scores, against their labels (documents, L)."""
        decoder, scorer, raw = self._decoder(), Scorer(self.taxonomy), Scorer(self.taxonomy)
        for documents, scores in scored:
            gold = labels[documents].toarray()
            scorer.update(gold, decoder.decode(scores), scores)
            raw.update(gold, scores > 0.5)
        return scorer.result() | {"threshold": self.decode_config.threshold, **_raw(raw.result())}

    def tune(self, scored: Iterable[Scored], labels: csr_array[Any]) -> None:
        """Choose thresholds that are best for documents with these scores and labels (documents, L), as configured."""
        config = self.decode_config
        if config.tune == "off" or config.strategy == "path":
            return
        tuner = ThresholdTuner(Decoder(self.taxonomy, config), len(self.taxonomy))
        for documents, scores in scored:
            tuner.update(labels[documents].toarray(), scores)
        self.decode_config = replace(config, threshold=tuner.best())
        if config.tune == "label":
            self.thresholds = tuner.best_by_label()

    def thresholds_document(self) -> dict[str, Any]:
        """The thresholds as plain values."""
        each = {} if self.thresholds is None else {"labels": self.thresholds.tolist()}
        return {"threshold": self.decode_config.threshold, **each}

    def set_thresholds(self, found: dict[str, Any]) -> None:
        """Take the thresholds that `thresholds_document` gave."""
        self.decode_config = replace(self.decode_config, threshold=found["threshold"])
        self.thresholds = np.array(found["labels"]) if "labels" in found else None

    def _decoder(self) -> Decoder:
        return Decoder(self.taxonomy, self.decode_config, self.thresholds)

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
    return {f"raw_{name}": result[name] for name in ("micro_f1", "macro_f1", "violations")}
