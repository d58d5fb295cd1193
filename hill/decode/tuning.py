"""Tuning on documents with gold labels: chooses calibration, thresholds, and with `auto` the decoding rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import Block, Calibrator, fit_calibrator
from hill.decode.decoder import DecodeConfig, Decoder
from hill.decode.thresholds import Histograms, choose_thresholds
from hill.metrics.label_sets import Counts, match_format, row_blocks, row_width
from hill.metrics.scores import CalibrationMetrics, mean_over_levels
from hill.sparse import Matrix, assemble_rows
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges
from hill.types import FloatArray, IntArray

# Scores

MAX_SCORES = 2**26
"""Maximum number of scores in memory (256 MiB, 512 MiB if sparse); of more documents, a random sample is used."""

SEED = 0
FOLDS = 4


@dataclass(frozen=True)
class CollectedScores:
    """Scores and gold labels of the same documents: (documents, L) each."""

    scores: Matrix
    labels: csr_array[Any]

    def __len__(self) -> int:
        return self.labels.shape[0]

    def blocks(self) -> Iterator[Block]:
        """Yield labels and scores in blocks of documents: both dense, or both sparse."""
        for start, stop in row_blocks(self.scores):
            yield match_format(self.labels[start:stop].astype(bool), self.scores[start:stop])

    def take(self, documents: IntArray) -> CollectedScores:
        """Return some of the documents."""
        return CollectedScores(self.scores[documents], self.labels[documents])

    def folds(self) -> Iterator[tuple[CollectedScores, CollectedScores]]:
        """Yield the training and test documents of a random cross-validation."""
        parts = np.array_split(np.random.default_rng(SEED).permutation(len(self)), FOLDS)
        for number, part in enumerate(parts):
            yield self.take(np.concatenate(parts[:number] + parts[number + 1 :])), self.take(part)


def collect_scores(scored: Iterable[tuple[IntArray, Matrix]], labels: csr_array[Any]) -> CollectedScores:
    """Collect scores that come in batches and in any order; if there are too many, those of a random sample."""
    batches = iter(scored)
    first = next(batches, (np.arange(0), np.zeros((0, labels.shape[1]), dtype=np.float32)))
    n_documents, n_sample = labels.shape[0], max(MAX_SCORES // max(row_width(first[1]), 1), 1)
    sample = np.arange(n_documents)
    if n_documents > n_sample:
        sample = np.sort(np.random.default_rng(SEED).choice(n_documents, n_sample, replace=False))
    row = np.full(n_documents, -1)
    row[sample] = np.arange(len(sample))
    parts = ((row[documents], scores) for documents, scores in chain([first], batches))
    sampled = ((rows[rows >= 0], scores[rows >= 0]) for rows, scores in parts)
    return CollectedScores(assemble_rows(sampled, (len(sample), labels.shape[1])), labels[sample])


# Tuning


@dataclass(frozen=True)
class Tuned:
    """The result of tuning: settings without `auto`, thresholds per label (L) and a calibrator, if there are any."""

    config: DecodeConfig
    thresholds: FloatArray | None = None
    calibrator: Calibrator | None = None

    def decoder(self, taxonomy: Taxonomy) -> Decoder:
        """Create a decoder with these settings."""
        return Decoder(taxonomy, self.config, self.thresholds, self.calibrator)


def tune(taxonomy: Taxonomy, config: DecodeConfig, collected: CollectedScores) -> Tuned:
    """Choose what the config asks for, so that it is best for these documents."""
    if config.calibrate == "auto":
        config = replace(config, calibrate=choose_calibration(taxonomy, collected))
    if config.strategy == "auto":
        config = choose_rule(taxonomy, config, collected)
    calibrator = fit_calibrator(config.calibrate, taxonomy, collected.blocks())
    if not config.thresholded:
        return Tuned(config, None, calibrator)
    histograms = _histograms(taxonomy, config, calibrator, collected)
    return _with_thresholds(taxonomy, config, calibrator, histograms)


def _with_thresholds(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, histograms: Histograms | None
) -> Tuned:
    """Choose the best thresholds for these histograms; without histograms, use the threshold of the config."""
    threshold, thresholds = choose_thresholds(histograms, taxonomy, config) if histograms else (config.threshold, None)
    if calibrator and _uses_raw_scores(config):
        raw = np.full(len(taxonomy), threshold) if thresholds is None else thresholds
        thresholds = calibrator(raw[None])[0].astype(np.float64)
    return Tuned(replace(config, threshold=threshold), thresholds, calibrator)


def _uses_raw_scores(config: DecodeConfig) -> bool:
    """Whether thresholds are chosen for scores before calibration, and are calibrated afterwards.

    With `ancestors` each label is compared by itself. Calibration is monotonic per label, so it cannot change the
    result, but curves of many labels would add noise to the choice.
    """
    return config.tune == "off" or config.strategy == "ancestors"


def _histograms(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, collected: CollectedScores
) -> Histograms | None:
    """Count the values that are compared with thresholds; None if no thresholds are chosen."""
    if config.tune == "off":
        return None
    calibrator = None if _uses_raw_scores(config) else calibrator
    if config.strategy == "ancestors" and config.tune == "global":
        config = replace(config, strategy="closure")  # equivalent with one threshold, and its counts are exact
    decoder, edges = Decoder(taxonomy, config, None, calibrator), AnyEdges(taxonomy).of(collected.scores)
    histograms = Histograms(len(taxonomy))
    for labels, scores in collected.blocks():
        compared = decoder.compared(scores)
        if config.tune_metric == "hierarchical_f1":
            labels, compared = (edges.leave(edges.close(edges.enter(each))) for each in (labels, compared))
        histograms.update(labels, compared)
    return histograms


def choose_calibration(taxonomy: Taxonomy, collected: CollectedScores) -> str:
    """Choose the kind of calibration with the lowest cross-validated expected calibration error, mean over levels."""
    metrics = {kind: CalibrationMetrics(taxonomy) for kind in ("off", "temperature", "isotonic")}
    for train, test in collected.folds():
        for kind, metric in metrics.items():
            calibrator = fit_calibrator(kind, taxonomy, train.blocks())
            for labels, scores in test.blocks():
                metric.update(labels, calibrator(scores) if calibrator else scores)
    return min(metrics, key=lambda kind: mean_over_levels(metrics[kind].levels()))


# The strategy auto

DEFAULT_RULE = ("ancestors", "off", "micro_f1")
"""Strategy, tuning and metric that `auto` falls back on: labels above 0.5 before calibration, with their ancestors."""

TUNED_RULES = tuple(product(("ancestors",), ("global", "level", "label"), ("micro_f1", "mean_f1")))
"""The rules that `auto` tries."""

MAX_LOSS = 0.004
"""Maximum loss of a tuned rule in any of the three metrics."""

MARGIN = 0.15
"""Minimum gain of a tuned rule over the default, times the square root of the number of documents: noise shrinks so."""


def choose_rule(taxonomy: Taxonomy, config: DecodeConfig, collected: CollectedScores) -> DecodeConfig:
    """Choose the default rule, or a tuned rule that is clearly better in a cross-validation.

    A tuned rule must not lose more than MAX_LOSS in micro, macro or hierarchical F1 against all labels above 0.5, and
    the mean of the three must be above that of the default rule by a margin. The rule with the highest mean is chosen.
    """
    rules = [
        replace(config, strategy=strategy, tune=tune, tune_metric=metric)
        for strategy, tune, metric in (DEFAULT_RULE, *TUNED_RULES)
    ]
    gains = _gains(taxonomy, rules, collected)
    mean = gains.mean(axis=1)
    allowed = (gains.min(axis=1) >= -MAX_LOSS) & (mean >= mean[0] + MARGIN / np.sqrt(max(len(collected), 1)))
    return rules[int(np.where(allowed, mean, -np.inf).argmax())] if allowed.any() else rules[0]


def _gains(taxonomy: Taxonomy, rules: list[DecodeConfig], collected: CollectedScores) -> FloatArray:
    """Compute the cross-validated gains of rules over all labels above 0.5: (rules, 3)."""
    raw, metrics = RuleMetrics(taxonomy), [RuleMetrics(taxonomy) for _ in rules]
    for train, test in collected.folds():
        calibrator = fit_calibrator(rules[0].calibrate, taxonomy, train.blocks())  # all rules share it
        histograms: dict[bool, Histograms | None] = {}  # one for global thresholds, one for all others
        decoders = []
        for rule in rules:
            key = rule.tune == "global"
            if rule.tune != "off" and key not in histograms:
                histograms[key] = _histograms(taxonomy, rule, calibrator, train)
            tuned = _with_thresholds(taxonomy, rule, calibrator, histograms[key] if rule.tune != "off" else None)
            decoders.append(Decoder(taxonomy, tuned.config, tuned.thresholds))
        for labels, scores in test.blocks():
            raw.update(labels, scores > 0.5)
            calibrated = calibrator(scores) if calibrator else scores
            for metric, decoder in zip(metrics, decoders, strict=True):
                metric.update(labels, decoder.decode(calibrated))
    return np.array([metric.result() for metric in metrics]) - raw.result()


class RuleMetrics:
    """The three metrics that a rule is chosen by."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._flat, self._closed = Counts(len(taxonomy)), Counts(len(taxonomy))

    def update(self, labels: Any, predicted: Any) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(labels)
        pair = [edges.enter(each) for each in (labels, predicted)]
        for counts, (gold, found) in ((self._flat, pair), (self._closed, [edges.close(each) for each in pair])):
            counts.add(*(edges.per_label(mask) for mask in (gold * found, found, gold)))

    def result(self) -> FloatArray:
        """Return micro, macro and hierarchical F1."""
        return np.array([self._flat.micro()[2], self._flat.macro()[2], self._closed.micro()[2]])
