"""Predictor: what every trained model can do. It needs scores of texts, and neither torch nor training."""

from __future__ import annotations

import os
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.data import Documents, read_data
from hill.data.documents import as_list
from hill.data.seen import Hashes, are_seen
from hill.decode import Calibrator, DecodeConfig, Decoder, Mixture, collect_scores, read_calibrator, tune
from hill.errors import CheckpointError, DataError, one_line
from hill.metrics import Scorer
from hill.metrics.label_sets import match_format
from hill.metrics.scores import CalibrationMetrics, mean_over_levels
from hill.settings import check_at_least
from hill.sparse import assemble_rows, flat_indices, row_indices
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import lookup
from hill.types import FloatArray, IntArray, Prediction

ScoredBatch = tuple[IntArray, Any]
"""Indices of some documents (n) and their scores (n, L): a float32 array, or a sparse `csr_array`."""
EvaluationData = Documents | dict[str, Documents] | str | os.PathLike[str]
TUNED_SETTINGS = ("strategy", "threshold", "tune", "tune_metric", "calibrate")
"""Decoding settings that are chosen on dev."""
RAW_METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "violations", "ece", "ece_levels")
"""Metrics that are also reported without decoding and calibration."""


class Predictor(ABC):
    """Turns texts into scores, and scores into label sets that respect the taxonomy.

    A subclass sets `taxonomy` and `decode_config` and implements `scores`. An ensemble is a predictor with further
    members, whose scores it mixes with those of its own model.
    """

    taxonomy: Taxonomy
    decode_config: DecodeConfig
    members: Sequence[Predictor] = ()
    mixture: Mixture | None = None
    """Mixes the own scores and those of the members, if there are any."""
    thresholds: FloatArray | None = None
    """Thresholds per label (L), if they differ between labels."""
    calibrator: Calibrator | None = None
    """Turns the scores of the model into probabilities, if it was fitted."""
    seen: Hashes | None = None
    """Sorted hashes of the texts of train and dev, if they are known."""
    decode_note: str = ""
    """What tuning chose and why, in one sentence."""

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Yield scores between 0 and 1, mixed if there are members, in batches of texts in any order.

        They are sparse if `decode.keep` is set or the labels are very many.
        """

    def mix(self, own: Iterable[ScoredBatch], texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Mix scores of the own model with those of the members for the same texts, if there are any."""
        for documents, scores in own:
            if self.mixture is not None:
                batch = [texts[document] for document in documents]
                scores = self.mixture([scores, *(member.score_matrix(batch) for member in self.members)])
            yield documents, scores

    def score_matrix(self, texts: Sequence[str]) -> Any:
        """The scores of all texts (texts, L), before calibration."""
        return assemble_rows(self.scores(texts), (len(texts), len(self.taxonomy)))

    def decoder(self) -> Decoder:
        """The decoder that turns the scores of this model into label sets."""
        return Decoder(self.taxonomy, self.decode_config, self.thresholds, self.calibrator)

    @property
    def threshold_range(self) -> tuple[float, float]:
        """The lowest and the highest threshold of a label; they are the same if thresholds do not differ."""
        if self.thresholds is None:
            return self.decode_config.threshold, self.decode_config.threshold
        return float(self.thresholds.min()), float(self.thresholds.max())

    # Prediction

    def predict(self, texts: Sequence[str]) -> list[list[str]]:
        """The label ids of each text, ancestors included, in the order of the taxonomy.

        Metrics of scikit-learn, such as `classification_report`, take `predict_indicator` and `indicator` instead.
        """
        return [list(prediction.labels) for prediction in self.predictions(texts)]

    def predict_indicator(self, texts: Sequence[str]) -> Any:
        """The predicted labels as a matrix (texts, L) of 0 and 1, for metrics of scikit-learn.

        It is sparse if `predict_proba` is.
        """
        texts, decoder = as_list(texts, "texts"), self.decoder()
        chosen = ((documents, decoder.decode(scores)) for documents, scores in self.scores(texts))
        return assemble_rows(chosen, (len(texts), len(self.taxonomy))).astype(np.int64)

    def predict_proba(self, texts: Sequence[str]) -> Any:
        """Calibrated scores (texts, L) between 0 and 1; unless decoding is raw, no label exceeds its parents.

        An array, or a `csr_array` if only the highest scores are kept; missing entries are 0.
        """
        texts, decoder = as_list(texts, "texts"), self.decoder()
        effective = ((documents, decoder.effective(scores)) for documents, scores in self.scores(texts))
        return assemble_rows(effective, (len(texts), len(self.taxonomy)))

    def predict_paths(self, texts: Sequence[str]) -> list[list[tuple[str, ...]]]:
        """The predicted paths of label ids of each text, from a root down to each most specific label."""
        return [list(prediction.paths) for prediction in self.predictions(texts)]

    def predictions(self, texts: Sequence[str], top: int = 0) -> list[Prediction]:
        """The labels, scores and paths of each text, and this many of the best labels that are not predicted."""
        texts, decoder = as_list(texts, "texts"), self.decoder()
        check_at_least(top, 0, "top")
        result: list[Prediction] = [Prediction((), (), ())] * len(texts)
        for documents, scores in self.scores(texts):
            chosen, effective = decoder.decide(scores)
            rows, labels, values = predicted_entries(chosen, effective)
            bounds = np.searchsorted(rows, np.arange(len(documents) + 1)).tolist()
            for row, document in enumerate(documents.tolist()):
                entries = slice(bounds[row], bounds[row + 1])
                prediction = self._prediction(labels[entries].tolist(), values[entries].tolist())
                if top:
                    others, other_scores = runners_up(chosen, effective, row, top, self.taxonomy)
                    pairs = zip(self.taxonomy.decode(others), other_scores.tolist(), strict=True)
                    prediction = replace(prediction, runners_up=tuple(pairs))
                result[document] = prediction
        return result

    def _prediction(self, labels: list[int], scores: list[float]) -> Prediction:
        taxonomy = self.taxonomy
        parents = {parent for label in labels for parent in taxonomy.parents(label).tolist()}
        ends = sorted((-score, label) for label, score in zip(labels, scores, strict=True) if label not in parents)
        paths = [tuple(taxonomy.decode(next(taxonomy.paths(label)))) for _, label in ends]
        return Prediction(tuple(taxonomy.decode(labels)), tuple(scores), tuple(paths))

    # Evaluation

    def evaluate(self, data: EvaluationData, include_seen: bool = False) -> dict[str, Any]:
        """All metrics of the predictions for documents, a data file, or the test split of a folder or of `read_data`.

        Documents that were in the training data are not scored, unless all of them were, or with `include_seen`.
        """
        documents, warning = self.evaluation_documents(data, include_seen)
        if warning and not include_seen:
            warnings.warn(warning, stacklevel=2)
        return self.measure(self.scores(documents.texts), documents.labels)

    def evaluation_documents(self, data: EvaluationData, include_seen: bool = False) -> tuple[Documents, str]:
        """The documents that `evaluate` scores, and a sentence if some were in the training data, else an empty one."""
        if isinstance(data, str | os.PathLike):
            data = read_data(data, self.taxonomy)
        if isinstance(data, dict) and data:
            data = data["test"] if "test" in data else next(iter(data.values()))
        if not isinstance(data, Documents):
            raise DataError(
                f"data is {reprlib.repr(data)}; expected documents, a data file or a folder; `score` takes texts and "
                "their labels"
            )
        data.check(self.taxonomy)
        if not data:
            raise DataError("there are no documents to evaluate; expected at least one")
        if self.seen is None or not (seen := are_seen(data.texts, self.seen)).any():
            return data, ""
        n_seen, reason = np.count_nonzero(seen), "their scores say little about new documents"
        part = "the only document was" if len(data) == 1 else f"{n_seen:,} of {len(data):,} documents were"
        warning = f"{part} in the training data; {reason}"
        if include_seen or n_seen == len(data):
            return data, warning
        return data.take(np.flatnonzero(~seen)), f"{warning}, so only the other {len(data) - n_seen:,} are scored"

    def measure(self, scored: Iterable[ScoredBatch], labels: csr_array[Any]) -> dict[str, Any]:
        """All metrics of documents with these scores and gold labels (documents, L).

        Metrics of scores use those of `predict_proba`; `raw_` metrics use the scores of the model at threshold 0.5, as
        in the paper.
        """
        decoder, scorer, raw_scorer = self.decoder(), Scorer(self.taxonomy), Scorer(self.taxonomy)
        raw_calibration = CalibrationMetrics(self.taxonomy)
        for documents, scores in scored:
            gold, _ = match_format(labels[documents].astype(bool), scores)
            scorer.update(gold, *decoder.decide(scores))
            raw_scorer.update(gold, scores > 0.5)
            raw_calibration.update(gold, scores)
        metrics = scorer.result()
        metrics |= {"ece_levels": mean_over_levels(metrics["levels"]), "threshold": self.decode_config.threshold}
        raw = raw_scorer.result() | raw_calibration.ece()
        return metrics | {f"raw_{name}": raw[name] for name in RAW_METRICS}

    # Tuning

    def tune(self, scored: Iterable[ScoredBatch], labels: csr_array[Any]) -> None:
        """Tune decoding, as configured, on documents with these scores and gold labels (documents, L).

        Afterwards `decode_config` has the chosen values in place of any `auto`.
        """
        if self.decode_config.tunable:
            tuned = tune(self.taxonomy, self.decode_config, collect_scores(scored, labels))
            self.decode_config, self.thresholds, self.calibrator = tuned.config, tuned.thresholds, tuned.calibrator
            self.decode_note = tuned.note

    def thresholds_document(self) -> dict[str, Any]:
        """The tuned decoding as JSON, for thresholds.json."""
        document: dict[str, Any] = {name: getattr(self.decode_config, name) for name in TUNED_SETTINGS}
        if self.thresholds is not None:
            document["labels"] = self.thresholds.tolist()
        if self.calibrator is not None:
            document["calibrator"] = self.calibrator.to_dict()
        if self.decode_note:
            document["note"] = self.decode_note
        return document

    def set_thresholds(self, document: dict[str, Any]) -> None:
        """Set the decoding from a `thresholds_document`; one without calibration means that it is off."""
        tuned = {"calibrate": "off"} | {name: document[name] for name in TUNED_SETTINGS if name in document}
        self.decode_config = replace(self.decode_config, **tuned)
        self.thresholds = _read_thresholds(document["labels"], self.taxonomy) if "labels" in document else None
        self.calibrator = read_calibrator(document["calibrator"], self.taxonomy) if "calibrator" in document else None
        self.decode_note = one_line(str(document.get("note", "")))


def predicted_entries(chosen: Any, effective: Any) -> tuple[IntArray, IntArray, npt.NDArray[np.float32]]:
    """The document (ascending), label and score of each predicted label, from two matrices (n, L) of the same kind.

    >>> predicted_entries(np.array([[True, False], [True, True]]), np.array([[0.9, 0.1], [0.8, 0.7]]))
    (array([0, 1, 1]), array([0, 0, 1]), array([0.9, 0.8, 0.7]))
    """
    if not isinstance(chosen, csr_array):
        documents, labels = np.nonzero(chosen)
        return documents, labels, effective[documents, labels]
    return row_indices(chosen), chosen.indices.astype(np.int64), lookup(effective, flat_indices(chosen))


def runners_up(
    chosen: Any, effective: Any, row: int, count: int, taxonomy: Taxonomy
) -> tuple[IntArray, npt.NDArray[np.float32]]:
    """The best labels of a document that are not predicted, and their scores; labels with a score of 0 are left out.

    Of equal scores the more specific label comes first.
    """
    if isinstance(effective, csr_array):
        entries, others = (slice(*matrix.indptr[row : row + 2]) for matrix in (effective, chosen))
        labels, scores = effective.indices[entries].astype(np.int64), effective.data[entries]
        predicted = chosen.indices[others]
    else:
        labels, scores, predicted = np.arange(effective.shape[1]), effective[row], np.flatnonzero(chosen[row])
    is_candidate = (scores > 0) & ~np.isin(labels, predicted)
    labels, scores = labels[is_candidate], scores[is_candidate]
    if count < len(labels):
        best = scores >= np.partition(scores, -count)[-count]
        labels, scores = labels[best], scores[best]
    order = np.lexsort((-taxonomy.depth[labels], -scores))[:count]
    return labels[order], scores[order]


def _read_thresholds(values: Any, taxonomy: Taxonomy) -> FloatArray:
    """The saved thresholds per label (L)."""
    thresholds = np.array(values)
    if thresholds.shape != (len(taxonomy),) or thresholds.dtype.kind not in "fi":
        raise CheckpointError(f"thresholds.json has no number for each of the {len(taxonomy):,} labels; copy it again")
    if len(wrong := np.flatnonzero(~((thresholds >= 0) & (thresholds <= 1)))):
        raise CheckpointError(
            f"thresholds.json has the threshold {thresholds[wrong[0]]} for label '{taxonomy[int(wrong[0])].id}'; "
            "expected a number from 0 to 1: copy it again"
        )
    return thresholds
