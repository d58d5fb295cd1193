"""Deciding on decoding with documents whose labels are known: calibration, thresholds, and with `auto` the rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from hill.decode.calibration import Calibrator, fit_calibrator
from hill.decode.config import DecodeConfig
from hill.decode.decoder import Decoder
from hill.decode.held import Held
from hill.decode.thresholds import Histograms, choose_thresholds
from hill.metrics.counts import Counts
from hill.metrics.edges import Edges
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray

PLAIN = ("ancestors", "off", "micro_f1")
"""Strategy, tuning and metric that `auto` falls back on: labels above 0.5 before calibration, and their ancestors."""
TRIED = tuple(product(("closure",), ("global", "level", "label"), ("micro_f1", "mean_f1")))
"""Those that it tries."""
MARGIN = 0.15
"""What a tuned rule must gain over the plain one, times the root of the number of documents: chance shrinks with it."""


@dataclass(frozen=True)
class Tuned:
    """What was decided: settings without any `auto`, thresholds of labels (L) and a calibrator where there are any."""

    config: DecodeConfig
    thresholds: FloatArray | None = None
    calibrator: Calibrator | None = None

    def decoder(self, taxonomy: Taxonomy) -> Decoder:
        """A decoder that does as was decided."""
        return Decoder(taxonomy, self.config, self.thresholds, self.calibrator)


def tune(taxonomy: Taxonomy, config: DecodeConfig, held: Held) -> Tuned:
    """Decide, as the config asks, what is best for these documents."""
    if config.calibrate == "auto":
        config = replace(config, calibrate=choose_calibration(taxonomy, held))
    if config.strategy == "auto":
        config = choose_rule(taxonomy, config, held)
    return fit_rule(taxonomy, config, held)


def fit_rule(taxonomy: Taxonomy, config: DecodeConfig, held: Held) -> Tuned:
    """Calibrate and find thresholds, where no setting is `auto`."""
    calibrator = fit_calibrator(config.calibrate, taxonomy, held.blocks())
    if not config.thresholded:
        return Tuned(config, None, calibrator)
    if config.tune == "off":
        return _untuned(taxonomy, config, calibrator)
    return _with_thresholds(taxonomy, config, calibrator, _histograms(taxonomy, config, calibrator, held))


def _with_thresholds(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, histograms: Histograms
) -> Tuned:
    threshold, thresholds = choose_thresholds(histograms, taxonomy, config)
    return Tuned(replace(config, threshold=threshold), thresholds, calibrator)


def _untuned(taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None) -> Tuned:
    """Thresholds of calibrated scores that are to each label what the config's is to the model's own scores."""
    if calibrator is None:
        return Tuned(config)
    same = calibrator(np.full((1, len(taxonomy)), config.threshold))[0]
    return Tuned(config, same.astype(np.float64), calibrator)


def _histograms(taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, held: Held) -> Histograms:
    if config.strategy == "ancestors" and config.tune == "global":
        config = replace(config, strategy="closure")  # which it is with one threshold, and whose counts are exact
    decoder, edges = Decoder(taxonomy, config, None, calibrator), Edges(taxonomy)
    found = Histograms(len(taxonomy))
    for labels, scores in held.blocks():
        compared = decoder.compared(scores)
        if config.tune_metric == "hierarchical_f1":
            labels = edges.close(np.ascontiguousarray(labels.T)).T
            compared = edges.close(np.ascontiguousarray(compared.T)).T
        found.update(labels, compared)
    return found


def choose_calibration(taxonomy: Taxonomy, held: Held) -> str:
    """The kind of calibration with the lowest Brier score on each part of the documents, fitted on the others."""
    found = {}
    for kind in ("off", "temperature", "isotonic"):
        found[kind] = 0.0
        for fitted, seen in held.folds():
            calibrator = fit_calibrator(kind, taxonomy, fitted.blocks())
            for labels, scores in seen.blocks():
                found[kind] += float(np.square((calibrator(scores) if calibrator else scores) - labels).sum())
    return min(found, key=lambda kind: found[kind])


def choose_rule(taxonomy: Taxonomy, config: DecodeConfig, held: Held) -> DecodeConfig:
    """The plain rule, or a tuned one that is clearly better on documents that it was not tuned on.

    Of tuned rules that lose in none of micro, macro and hierarchical F1 against every label above 0.5, and whose mean
    of the three is at least the margin above the plain rule's, the one with the highest mean.
    """
    rules = [replace(config, strategy=name, tune=tune, tune_metric=metric) for name, tune, metric in (PLAIN, *TRIED)]
    gains = _gains(taxonomy, rules, held)
    mean = gains.mean(axis=1)
    allowed = (gains.min(axis=1) >= 0) & (mean >= mean[0] + MARGIN / np.sqrt(max(len(held), 1)))
    return rules[int(np.where(allowed, mean, -np.inf).argmax())] if allowed.any() else rules[0]


def _gains(taxonomy: Taxonomy, rules: list[DecodeConfig], held: Held) -> FloatArray:
    """What rules gain over every label above 0.5, each part of the documents decided by the others: (rules, 3)."""
    plain, measured = Measured(taxonomy), [Measured(taxonomy) for _ in rules]
    for fitted, seen in held.folds():
        calibrator, decoders = _fit_all(taxonomy, rules, fitted)
        for labels, scores in seen.blocks():
            plain.update(labels, scores > 0.5)
            calibrated = calibrator(scores) if calibrator else scores
            for each, decoder in zip(measured, decoders, strict=True):
                each.update(labels, decoder.decode(calibrated))
    return np.array([each.result() for each in measured]) - plain.result()


def _fit_all(taxonomy: Taxonomy, rules: list[DecodeConfig], held: Held) -> tuple[Calibrator | None, list[Decoder]]:
    """The calibrator that rules share, and for each a decoder of scores that are calibrated.

    All rules but the plain one are of one strategy and share their counts.
    """
    calibrator = fit_calibrator(rules[0].calibrate, taxonomy, held.blocks())
    histograms = _histograms(taxonomy, rules[1], calibrator, held)
    tuned = [_untuned(taxonomy, rules[0], calibrator)]
    tuned += [_with_thresholds(taxonomy, rule, calibrator, histograms) for rule in rules[1:]]
    return calibrator, [Decoder(taxonomy, each.config, each.thresholds) for each in tuned]


class Measured:
    """The three measures that a rule is chosen by."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = Edges(taxonomy)
        self._flat, self._closed = Counts(len(taxonomy)), Counts(len(taxonomy))

    def update(self, labels: BoolArray, chosen: BoolArray) -> None:
        """Count these documents, (B, L) each."""
        both = [np.ascontiguousarray(each.T) for each in (labels, chosen)]
        for counts, (gold, found) in ((self._flat, both), (self._closed, [self._edges.close(each) for each in both])):
            counts.add(*(np.count_nonzero(mask, axis=1) for mask in (gold & found, found, gold)))

    def result(self) -> FloatArray:
        """Micro, macro and hierarchical F1."""
        return np.array([self._flat.micro()[2], self._flat.macro()[2], self._closed.micro()[2]])
