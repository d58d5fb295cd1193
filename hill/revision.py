"""A taxonomy that changes: use a trained model with the new version, and recode documents of the old one.

`apply_taxonomy` needs no training: a label that the model knows keeps its weights, and a new label is scored by its
name and description, compared with those of all other labels. `recode` chooses among the candidates of a
correspondence table.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from hill.card import package_versions
from hill.classifier import HillClassifier
from hill.cold_start import check_names
from hill.data import Documents
from hill.decode.calibration import sigmoid
from hill.errors import ConfigError
from hill.models.base import COUNTS_FILE
from hill.models.inference import SavedModel
from hill.predictor import Predictor
from hill.taxonomy import Taxonomy
from hill.taxonomy.diff import TaxonomyDiff, diff
from hill.train.warm_start import build_warm
from hill.types import IntArray

MAX_LOGIT, HALVINGS = 20.0, 40
"""Thresholds are looked for up to this logit, by halving the range this often."""


def apply_taxonomy(classifier: HillClassifier, taxonomy: Taxonomy) -> tuple[HillClassifier, TaxonomyDiff]:
    """A classifier for another version of the taxonomy, without training, and what changed.

    A new label is scored by its name alone (`hill.models.hill.UnseenLabels`). Members of an ensemble are left out: they
    do not read names.
    """
    old = classifier.stored
    names: Any = getattr(old.model, "names", None)
    if names is None:
        raise ConfigError(
            f"this '{old.name}' model does not read the names of labels, so it cannot score new ones; train it again "
            "with --warm-start, or train a model with model.name_weight=10"
        )
    if "cold_start" in classifier.training_record:
        raise ConfigError("this model was made by hill start; make it again with the new taxonomy: hill start")
    check_names(taxonomy)
    changes = diff(old.taxonomy, taxonomy)
    source = np.full(len(taxonomy), -1)
    source[changes.pairs[:, 1]] = changes.pairs[:, 0]
    nothing: csr_array[Any] = csr_array((0, len(taxonomy)), dtype=bool)
    model, tokenizer, report = build_warm(old, Documents([], [], nothing, 0), taxonomy, old.model.config)
    if len(report.fresh):
        raise ConfigError("the two taxonomies have no label in common; make a model for the new one: hill start")
    counts = np.array(old.model.assets[COUNTS_FILE])
    model.assets[COUNTS_FILE] = np.where(source >= 0, counts[source], 0).tolist()
    result = HillClassifier(taxonomy, old.name, classifier.settings(), preset=None)
    result.set_stored(SavedModel(old.name, model.eval(), taxonomy, tokenizer, classifier.settings()))
    decoding = classifier.own_decoding if classifier.members else classifier.thresholds_document()
    result.set_thresholds(_convert_decoding(decoding, source, old.taxonomy, taxonomy))
    result.metrics, result.seen = {}, classifier.seen
    _set_new_biases(result, model, np.flatnonzero(source < 0))
    record = {"added": len(changes.added), "removed": len(changes.removed), "moved": len(changes.moved)}
    result.training_record = {**classifier.training_record, "applied": record, "versions": package_versions()}
    result.training_record.pop("dev", None)
    return result, changes


def _convert_decoding(document: dict[str, Any], source: IntArray, old: Taxonomy, new: Taxonomy) -> dict[str, Any]:
    """The tuned decoding for other labels: a new label has the mean threshold, and no curve of its own."""
    converted = dict(document)
    if "labels" in document:
        thresholds = np.array(document["labels"])
        converted["labels"] = np.where(source >= 0, thresholds[source], thresholds.mean()).tolist()
    if calibrator := document.get("calibrator"):
        levels = [calibrator["levels"][min(level, len(old.levels) - 1)] for level in range(len(new.levels))]
        converted["calibrator"] = calibrator | {"levels": levels}
        if "rows" in calibrator:
            place = {int(row): i for i, row in enumerate(source.tolist()) if row >= 0}
            kept = [
                (place[row], curve)
                for row, curve in zip(calibrator["rows"], calibrator["labels"], strict=True)
                if row in place
            ]
            kept.sort(key=lambda pair: pair[0])
            converted["calibrator"] |= {"rows": [row for row, _ in kept], "labels": [curve for _, curve in kept]}
    return converted


@torch.no_grad()
def _set_new_biases(classifier: HillClassifier, model: Any, rows: IntArray) -> None:
    """Move the even odds of these labels to the thresholds of the tuned decoding."""
    decoder = classifier.decoder()
    if not decoder.config.thresholded or not len(rows):
        return
    thresholds = decoder.config.threshold if classifier.thresholds is None else classifier.thresholds
    low = np.full(len(classifier.taxonomy), -MAX_LOGIT)
    high = -low
    for _ in range(HALVINGS):  # the logit whose calibrated score is the threshold
        middle = (low + high) / 2
        above = np.asarray(decoder.calibrated(sigmoid(middle)[None]))[0] > thresholds
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    model.head.bias[rows] += torch.from_numpy(low[rows]).to(model.head.bias)


def recode(
    predictor: Predictor, texts: Sequence[str], candidates: Sequence[Sequence[Sequence[int]]]
) -> list[list[tuple[str, float]]]:
    """Choose one new label per old label of each text, with its score: the candidate with the highest score.

    An old label with a single candidate needs no model; its score is 1. Of labels that are chosen twice, or are
    ancestors of other chosen labels, one is left.

    Args:
        predictor: a model for the new taxonomy.
        texts: the texts.
        candidates: for each text and each of its old labels, rows of the new taxonomy.
    """
    taxonomy, decoder = predictor.taxonomy, predictor.decoder()
    result: list[list[tuple[int, float]]] = [[(own[0], 1.0) for own in each] for each in candidates]
    open_rows = [i for i, each in enumerate(candidates) if any(len(own) > 1 for own in each)]
    for rows, scores in predictor.scores([texts[i] for i in open_rows]) if open_rows else ():
        effective = decoder.effective(scores)
        for row, values in zip(rows.tolist(), effective, strict=True):
            document = open_rows[row]
            for place, own in enumerate(candidates[document]):
                if len(own) > 1:
                    dense = values.toarray().ravel() if hasattr(values, "toarray") else values
                    best = max(own, key=lambda label: float(dense[label]))
                    result[document][place] = best, float(dense[best])
    kept = []
    for chosen in result:
        scores = dict(sorted(chosen, key=itemgetter(1)))  # the highest score of a label that is chosen twice
        kept.append([(taxonomy[row].id, scores[row]) for row in taxonomy.most_specific(row for row, _ in chosen)])
    return kept
