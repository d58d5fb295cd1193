"""Tuning on documents with gold labels: chooses calibration, thresholds that maximise F1, and with `auto` the rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import Block, Calibrator, fit_calibrator, sigmoid
from hill.decode.decoder import DecodeConfig, Decoder
from hill.decode.mixture import MIN_DOCUMENTS
from hill.metrics.label_sets import Counts, match_format, ratio, row_blocks, row_width
from hill.metrics.scores import CalibrationMetrics, mean_over_levels
from hill.sparse import Matrix, assemble_rows
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, scores_at_labels
from hill.types import MANY_LABELS, FloatArray, IntArray

# Scores

MAX_SCORES = 2**26
"""Maximum number of scores in memory (256 MiB, 512 MiB if sparse); of more documents, a random sample is used."""
SEED = 0
FOLDS = 4
FEW_DOCUMENTS = 200
"""With fewer documents, `auto` never calibrates by isotonic regression, and tunes thresholds only for a clear gain."""


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

    def folds(self) -> Iterator[tuple[CollectedScores, CollectedScores]]:
        """Yield the training and test documents of each fold of a random cross-validation."""
        parts = np.array_split(np.random.default_rng(SEED).permutation(len(self)), FOLDS)
        for number, part in enumerate(parts):
            rest = np.concatenate(parts[:number] + parts[number + 1 :])
            train, test = (CollectedScores(self.scores[rows], self.labels[rows]) for rows in (rest, part))
            yield train, test


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
    note: str = ""
    """What was chosen and why, in one sentence."""

    def decoder(self, taxonomy: Taxonomy) -> Decoder:
        """Create a decoder with these settings."""
        return Decoder(taxonomy, self.config, self.thresholds, self.calibrator)


def tune(taxonomy: Taxonomy, config: DecodeConfig, collected: CollectedScores) -> Tuned:
    """Choose calibration, strategy and thresholds, as the config asks, that are best for these documents."""
    automatic = config.strategy == "auto"
    if len(collected) < MIN_DOCUMENTS:
        config = replace(config, calibrate="off") if config.calibrate == "auto" else config
        strategy = "path" if has_one_path(taxonomy, collected) else "ancestors"
        config = replace(config, strategy=strategy, tune="off") if automatic else config
    if config.calibrate == "auto":
        config = replace(config, calibrate=choose_calibration(taxonomy, collected))
    if config.strategy == "auto":
        config = choose_rule(taxonomy, config, collected)
    calibrator = fit_calibrator(config.calibrate, taxonomy, collected.blocks())
    if config.thresholded:
        histograms = _histograms(taxonomy, config, calibrator, collected)
        tuned = _with_thresholds(taxonomy, config, calibrator, histograms)
    else:
        tuned = Tuned(config, None, calibrator)
    return replace(tuned, note=describe_choice(tuned.config, len(collected), automatic))


GROUPS = {"global": "one threshold for all labels", "level": "one threshold per level", "label": "thresholds per label"}
METRIC_NAMES = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hierarchical_f1": "hierarchical F1",
    "mean_f1": "mean F1",
}


def describe_choice(config: DecodeConfig, n_documents: int, automatic: bool) -> str:
    """Say in one sentence which labels are predicted; `automatic` if the strategy was chosen on these documents."""
    few = automatic and n_documents < FEW_DOCUMENTS
    if not config.thresholded:
        choice = "the best path is predicted" if config.k == 1 else f"the {config.k} best paths are predicted"
        if automatic:
            reason = "too few to tune thresholds, and " if few else ""
            choice = f"{reason}documents have one path; {choice}"
    elif config.tune != "off":
        choice = f"{GROUPS[config.tune]}, tuned for {METRIC_NAMES[config.tune_metric]}"
        if few:
            choice = f"few, but a tuned threshold is clearly better than 0.5; {choice}"
    else:
        reason = (
            "too few to tune thresholds; " if few else "no tuned threshold is clearly better; " if automatic else ""
        )
        raw = " before calibration" if config.calibrate == "isotonic" else ""
        choice = f"{reason}scores above {config.threshold:g}{raw} are predicted"
    return f"{n_documents:,} dev document{'s' if n_documents != 1 else ''}: {choice}"


def _with_thresholds(
    taxonomy: Taxonomy, config: DecodeConfig, calibrator: Calibrator | None, histograms: Histograms
) -> Tuned:
    """Choose the best thresholds for these histograms."""
    threshold, thresholds = choose_thresholds(histograms, taxonomy, config)
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
) -> Histograms:
    """Count the values that are compared with thresholds; none if no thresholds are chosen."""
    calibrator = None if _uses_raw_scores(config) else calibrator
    if config.strategy == "ancestors" and config.tune == "global":
        config = replace(config, strategy="closure")  # equivalent with one threshold, and its counts are exact
    decoder, edges = Decoder(taxonomy, config, None, calibrator), AnyEdges(taxonomy).of(collected.scores)
    histograms = Histograms(len(taxonomy))
    for labels, scores in collected.blocks() if config.tune != "off" else ():
        compared = decoder.compared(scores)
        if config.tune_metric == "hierarchical_f1":
            labels, compared = (edges.leave(edges.close(edges.enter(each))) for each in (labels, compared))
        histograms.update(labels, compared)
    return histograms


def choose_calibration(taxonomy: Taxonomy, collected: CollectedScores) -> str:
    """Choose the kind of calibration with the lowest cross-validated expected calibration error, mean over levels.

    Isotonic curves have no prior, so few documents that are separated perfectly would turn scores into 0 and 1.
    """
    kinds = ("off", "temperature") if len(collected) < FEW_DOCUMENTS else ("off", "temperature", "isotonic")
    metrics = {kind: CalibrationMetrics(taxonomy) for kind in kinds}
    for train, test in collected.folds():
        for kind, metric in metrics.items():
            calibrator = fit_calibrator(kind, taxonomy, train.blocks())
            for labels, scores in test.blocks():
                metric.update(labels, calibrator(scores) if calibrator else scores)
    return min(metrics, key=lambda kind: mean_over_levels(metrics[kind].levels()))


# The strategy auto

RULES = (("off", "micro_f1"), *product(("global", "level", "label"), ("micro_f1", "mean_f1")))
"""Tuning and metric of the rules that `auto` tries, all with strategy ancestors; the first is the default."""
MAX_LOSS = 0.004
"""Maximum loss of a tuned rule in any of the three metrics."""
MARGIN = 0.15
"""Minimum gain of a tuned rule over the default, times the square root of the number of documents, as noise shrinks."""
CLEAR_GAIN = 0.03
"""Minimum gain of a tuned rule over the default with few documents."""


MAX_PATHS, MIN_LEAVES = 1.05, 0.5
"""Paths per document up to which, and share of paths that end at a leaf from which, `has_one_path` is true."""


def has_one_path(taxonomy: Taxonomy, collected: CollectedScores) -> bool:
    """Whether nearly all documents have one path, most of them down to a leaf."""
    edges = AnyEdges(taxonomy).of(collected.labels)
    labels = edges.enter(collected.labels.astype(bool))
    counts = edges.per_label(labels > edges.with_child(labels))
    return bool(
        counts.sum() <= MAX_PATHS * len(collected) and counts[taxonomy.leaves].sum() >= MIN_LEAVES * counts.sum()
    )


def choose_rule(taxonomy: Taxonomy, config: DecodeConfig, collected: CollectedScores) -> DecodeConfig:
    """Choose the default rule, or a rule that is clearly better.

    The default rule is all labels above 0.5, with ancestors; or the best path, if documents are few and have one path.
    Another rule must not lose more than MAX_LOSS in micro, macro or hierarchical F1 against all labels above 0.5, and
    the mean of the three must be above that of the default rule by a margin, all in a cross-validation. The rule with
    the highest mean is chosen. With few documents the margin is large: tuning is then for models whose scores are far
    too low or too high.
    """
    rules = [replace(config, strategy="ancestors", tune=tune, tune_metric=metric) for tune, metric in RULES]
    few = len(collected) < FEW_DOCUMENTS
    if (few or len(taxonomy) <= MANY_LABELS) and has_one_path(taxonomy, collected):
        # It needs no threshold. TF-IDF on wos, dev: 78.6 / 67.3 micro / macro F1, with tuned thresholds 75.5 / 62.0.
        rules.insert(0 if few else len(rules), replace(config, strategy="path", tune="off"))
    gains = _gains(taxonomy, rules, collected)
    mean = gains.mean(axis=1)
    margin = MARGIN / np.sqrt(max(len(collected), 1))
    if few:
        margin = max(margin, CLEAR_GAIN)
    allowed = (gains.min(axis=1) >= -MAX_LOSS) & (mean >= mean[0] + margin)
    return rules[int(np.where(allowed, mean, -np.inf).argmax())] if allowed.any() else rules[0]


def _gains(taxonomy: Taxonomy, rules: list[DecodeConfig], collected: CollectedScores) -> FloatArray:
    """Compute the cross-validated gains of rules over all labels above 0.5: (rules, 3)."""
    raw, metrics = RuleMetrics(taxonomy), [RuleMetrics(taxonomy) for _ in rules]
    for train, test in collected.folds():
        calibrator = fit_calibrator(rules[0].calibrate, taxonomy, train.blocks())  # all rules share it
        histograms: dict[tuple[bool, bool], Histograms] = {}  # the rules level and label share them
        decoders = []
        for rule in rules:
            key = rule.tune == "off", rule.tune == "global"
            if key not in histograms:
                histograms[key] = _histograms(taxonomy, rule, calibrator, train)
            tuned = _with_thresholds(taxonomy, rule, calibrator, histograms[key])
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


# Thresholds

GRID: FloatArray = sigmoid(np.linspace(-9, 9, 361))
"""Candidate thresholds, evenly spaced in logits: dense near 0, where rare labels have their thresholds."""
WIDTH = len(GRID) + 1
"""Number of score ranges between the thresholds. Missing scores are in the first one, below all thresholds."""
MACRO_SHARE = {"micro_f1": 0.0, "hierarchical_f1": 0.0, "macro_f1": 1.0, "mean_f1": 1 / 3}
"""Weight of macro F1 in a metric. The rest is micro F1, which equals hierarchical F1 for consistent label sets."""
MIN_SUPPORT = 10
"""Gold documents in dev that a label needs to have its own threshold."""
TIE = 1e-12
MAX_ROUNDS = 100
BLOCK_ROWS = 4096
"""Number of labels, or of groups of labels, that are processed at a time."""


def choose_thresholds(
    histograms: Histograms, taxonomy: Taxonomy, config: DecodeConfig
) -> tuple[float, FloatArray | None]:
    """Choose one threshold for all labels, and one per label (L) if the config asks for it.

    Labels with too few gold documents share a threshold with the other such labels of their level. If these have too
    few together, they use the threshold of all labels.
    """
    if config.tune == "off":
        return config.threshold, None
    level = taxonomy.depth - 1
    shared = histograms.best(np.zeros_like(level), config.tune_metric)[0]
    if config.tune == "global":
        return float(shared), None
    groups = level
    if config.tune == "label":
        single = level.max(initial=0) + 1 + np.arange(len(level))
        groups = np.where(histograms.gold >= MIN_SUPPORT, single, level)
    groups = np.unique(groups, return_inverse=True)[1]
    support = np.bincount(groups, histograms.gold)
    thresholds = np.where(support >= MIN_SUPPORT, histograms.best(groups, config.tune_metric), shared)
    return float(shared), thresholds[groups]


class Histograms:
    """Counts documents and gold documents per label and score range; scores are dense or sparse."""

    def __init__(self, n_labels: int) -> None:
        self.gold: IntArray = np.zeros(n_labels, dtype=np.int64)
        """Number of gold documents per label (L)."""
        self._hits: csr_array[Any] = csr_array((n_labels, WIDTH), dtype=np.int64)
        self._predicted = self._hits.copy()

    def update(self, labels: Any, scores: Any) -> None:
        """Count these documents: (B, L) each, both dense or both sparse."""
        if isinstance(scores, csr_array):
            gold_labels, gold_scores = scores_at_labels(labels, scores)
            predicted = self._count(scores.indices.astype(np.int64), scores.data)
        else:
            gold_labels, gold_scores = np.nonzero(labels)[1], scores[labels]
            predicted = self._count(np.tile(np.arange(scores.shape[1]), len(scores)), scores.ravel())
        self._predicted = self._predicted + predicted
        self._hits = self._hits + self._count(gold_labels, gold_scores)
        self.gold += np.bincount(gold_labels, minlength=len(self.gold))

    def _count(self, labels: IntArray, scores: Any) -> csr_array[Any]:
        """Count scores per label and range (L, WIDTH), without the first range, which is above no threshold."""
        steps = np.searchsorted(GRID, scores.astype(np.float64))
        ranges, counts = np.unique((labels * WIDTH + steps)[steps > 0], return_counts=True)
        return csr_array((counts, np.divmod(ranges, WIDTH)), shape=self._hits.shape)

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of hits and of predicted labels per group and threshold: (G, thresholds) each."""
        membership = _membership(groups)
        return _above(membership @ self._hits), _above(membership @ self._predicted)

    def f1(self, groups: IntArray) -> FloatArray:
        """Return the sum of the F1 of the labels per group and threshold: (G, thresholds)."""
        membership = _membership(groups)
        sums: FloatArray = np.zeros((membership.shape[0], len(GRID)))
        supported = np.flatnonzero(self.gold)  # the F1 of other labels is 0
        for start in range(0, len(supported), BLOCK_ROWS):
            rows = supported[start : start + BLOCK_ROWS]
            hits, predicted = _above(self._hits[rows]), _above(self._predicted[rows])
            sums += membership[:, rows] @ ratio(2 * hits, predicted + self.gold[rows, None])
        return sums

    def best(self, groups: IntArray, metric: str) -> FloatArray:
        """Return one threshold per group of labels (L, numbered from 0) that together maximise the metric.

        With f the micro F1 and n the number of predicted and gold labels of the previous round, a group contributes
        (2 hits - f predicted) / n to the micro F1, and the F1 of its labels / L to the macro F1. Each group maximises
        its contribution by itself. For the micro F1 this is Dinkelbach's method: f never decreases, and is optimal as
        soon as it stays the same.
        """
        share, gold = MACRO_SHARE[metric], self.gold.sum()
        hits, predicted = self.counts(groups)
        macro = self.f1(groups) / len(groups) if share else np.zeros((len(hits), 1))
        rows = np.arange(len(hits))
        best, f1, total = -1.0, 0.0, max(gold, 1)
        for _ in range(MAX_ROUNDS):
            parts = []
            for start in range(0, max(len(hits), 1), BLOCK_ROWS):
                block = slice(start, start + BLOCK_ROWS)
                micro = (2 * hits[block] - f1 * predicted[block]) / total
                parts.append(_argmax_middle(share * macro[block] + (1 - share) * micro))
            index = np.concatenate(parts)
            total = max(predicted[rows, index].sum() + gold, 1)
            f1 = 2 * hits[rows, index].sum() / total
            value = (share * macro[rows, index].sum() if share else 0.0) + (1 - share) * f1
            if value <= best + TIE:
                break
            best, chosen = value, index
        thresholds: FloatArray = GRID[chosen]
        return thresholds


def _membership(groups: IntArray) -> csr_array[Any]:
    """Return a matrix (G, L) with 1 if a label is in a group."""
    ones, columns = np.ones(len(groups)), np.arange(len(groups))
    return csr_array((ones, (groups, columns)), shape=(groups.max(initial=-1) + 1, len(groups)))


def _above(counts: csr_array[Any]) -> FloatArray:
    """Turn counts per range into counts above each threshold: (rows, WIDTH) to dense (rows, thresholds)."""
    above: FloatArray = np.cumsum(counts.toarray()[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
    return above


def _argmax_middle(values: FloatArray) -> IntArray:
    """Return the index of the maximum of each row; the middle one of ties."""
    highest = values >= values.max(axis=1, keepdims=True) - TIE
    rank = highest.cumsum(axis=1)
    index: IntArray = (rank > rank[:, -1:] // 2).argmax(axis=1)
    return index
