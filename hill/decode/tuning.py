"""Deciding on decoding with documents whose labels are known: calibration, thresholds, and with `auto` the rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import Calibrator, fit_calibrator
from hill.decode.config import DecodeConfig
from hill.decode.decoder import Decoder
from hill.decode.held import Held
from hill.decode.histograms import SparseHistograms
from hill.decode.thresholds import AnyHistograms, Histograms, choose_thresholds
from hill.metrics.calibration import Calibration, mean_over_levels
from hill.metrics.counts import Counts
from hill.metrics.sparse import AnyEdges
from hill.taxonomy import Taxonomy
from hill.types import FloatArray

PLAIN = ("ancestors", "off", "micro_f1")
"""Strategy, tuning and metric that `auto` falls back on: labels above 0.5 before calibration, and their ancestors."""
TRIED = tuple(product(("ancestors",), ("global", "level", "label"), ("micro_f1", "mean_f1")))
"""Those that it tries."""
LOSS = 0.004
"""What a tuned rule may lose in one of the three measures."""
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
    return _with_thresholds(taxonomy, config, calibrator, _histograms(taxonomy, config, calibrator, held))


def _with_thresholds(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, histograms: AnyHistograms | None
) -> Tuned:
    """The thresholds that are best by these counts, or the config's where there are none."""
    threshold, thresholds = choose_thresholds(histograms, taxonomy, config) if histograms else (config.threshold, None)
    if calibrator and _by_own_scores(config):
        own = np.full(len(taxonomy), threshold) if thresholds is None else thresholds
        thresholds = calibrator(own[None])[0].astype(np.float64)
    return Tuned(replace(config, threshold=threshold), thresholds, calibrator)


def _by_own_scores(config: DecodeConfig) -> bool:
    """Whether thresholds are of the model's own scores.

    With `ancestors` each label is compared for itself, and calibration, which rises for every label, changes nothing:
    curves of many labels would only add noise. Those of calibrated scores are then what they become by it.
    """
    return config.tune == "off" or config.strategy == "ancestors"


def _histograms(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, held: Held
) -> AnyHistograms | None:
    """Counts of what the config compares with thresholds, where they are to be chosen."""
    if config.tune == "off":
        return None
    calibrator = None if _by_own_scores(config) else calibrator
    if config.strategy == "ancestors" and config.tune == "global":
        config = replace(config, strategy="closure")  # which it is with one threshold, and whose counts are exact
    decoder, edges = Decoder(taxonomy, config, None, calibrator), AnyEdges(taxonomy).of(held.scores)
    found = (SparseHistograms if isinstance(held.scores, csr_array) else Histograms)(len(taxonomy))
    for labels, scores in held.blocks():
        compared = decoder.compared(scores)
        if config.tune_metric == "hierarchical_f1":
            labels, compared = (edges.leave(edges.close(edges.enter(each))) for each in (labels, compared))
        found.update(labels, compared)
    return found


def choose_calibration(taxonomy: Taxonomy, held: Held) -> str:
    """The kind of calibration with the least error on each part of the documents, fitted on the others.

    It is the expected calibration error, a mean over levels: of each level all labels together are asked how often what
    is said to be so many per cent is true.
    """
    found = {kind: Calibration(taxonomy) for kind in ("off", "temperature", "isotonic")}
    for fitted, seen in held.folds():
        for kind, measured in found.items():
            calibrator = fit_calibrator(kind, taxonomy, fitted.blocks())
            for labels, scores in seen.blocks():
                measured.update(labels, calibrator(scores) if calibrator else scores)
    return min(found, key=lambda kind: mean_over_levels(found[kind].levels()))


def choose_rule(taxonomy: Taxonomy, config: DecodeConfig, held: Held) -> DecodeConfig:
    """The plain rule, or a tuned one that is clearly better on documents that it was not tuned on.

    Of tuned rules that lose little or nothing in each of micro, macro and hierarchical F1 against every label above
    0.5, and whose mean of the three is at least the margin above the plain rule's, the one with the highest mean.
    """
    rules = [replace(config, strategy=name, tune=tune, tune_metric=metric) for name, tune, metric in (PLAIN, *TRIED)]
    gains = _gains(taxonomy, rules, held)
    mean = gains.mean(axis=1)
    allowed = (gains.min(axis=1) >= -LOSS) & (mean >= mean[0] + MARGIN / np.sqrt(max(len(held), 1)))
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
    """The calibrator that rules of one strategy share, and for each a decoder of scores that are calibrated."""
    calibrator = fit_calibrator(rules[0].calibrate, taxonomy, held.blocks())
    counted: dict[tuple[bool, bool], AnyHistograms | None] = {}
    decoders = []
    for rule in rules:
        kind = rule.tune == "off", rule.tune == "global"
        if kind not in counted:
            counted[kind] = _histograms(taxonomy, rule, calibrator, held)
        tuned = _with_thresholds(taxonomy, rule, calibrator, counted[kind])
        decoders.append(Decoder(taxonomy, tuned.config, tuned.thresholds))
    return calibrator, decoders


class Measured:
    """The three measures that a rule is chosen by."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._flat, self._closed = Counts(len(taxonomy)), Counts(len(taxonomy))

    def update(self, labels: Any, chosen: Any) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(labels)
        both = [edges.enter(each) for each in (labels, chosen)]
        for counts, (gold, found) in ((self._flat, both), (self._closed, [edges.close(each) for each in both])):
            counts.add(*(edges.per_label(mask) for mask in (gold * found, found, gold)))

    def result(self) -> FloatArray:
        """Micro, macro and hierarchical F1."""
        return np.array([self._flat.micro()[2], self._flat.macro()[2], self._closed.micro()[2]])
