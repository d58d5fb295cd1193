"""Presets: settings that are chosen from what is known before training, with a reason for each.

`choose` maps a preset and the facts about data, labels, encoder and device to settings; `fit_to_time` changes them so
that a training ends in a given time. Both are pure functions. Settings of the user override what they choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hill.data import Documents
from hill.data.documents import describe_labels
from hill.errors import ConfigError
from hill.settings import Groups, check_one_of
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges
from hill.types import MANY_LABELS, IntArray


@dataclass(frozen=True)
class Facts:
    """What is known before training."""

    documents: int
    """Training documents."""
    labels: int
    paths: float
    """Most specific labels per training document, on average."""
    words: float
    """Words per training document, on average."""
    has_names: bool
    """Whether most labels have a name or a description in words."""
    label_texts: int
    """Names of labels, and sentences of their descriptions, that are not among the training documents."""
    layers: int
    """Layers of the text encoder; 0 if it is not a transformer."""
    width: int
    """Width of the text encoder."""
    device: str
    """cpu or cuda."""
    continued: bool = False
    """Whether a trained model continues on new documents, mixed with old ones."""
    started: bool = False
    """Whether training starts from a model of `hill start`."""


def describe(train: Documents, taxonomy: Taxonomy, shape: tuple[int, int], device: str) -> Facts:
    """The facts about these documents and labels, and an encoder with this many layers of this width."""
    edges = AnyEdges(taxonomy).of(train.labels)
    labels = edges.enter(train.labels)
    specific = labels > edges.with_child(labels)
    named = sum(label.has_words for label in taxonomy)
    return Facts(
        documents=len(train),
        labels=len(taxonomy),
        paths=float(specific.sum()) / max(len(train), 1),
        words=sum(len(text.split()) for text in train.texts) / max(len(train), 1),
        has_names=named > len(taxonomy) / 2,
        label_texts=len(describe_labels(taxonomy, [train])),
        layers=shape[0],
        width=shape[1],
        device=device,
    )


# The presets

MAX_PATHS_ZLPR = 1.5
"""Paths per document up to which the loss is zlpr."""
MAX_NAMED = 5_000
"""Labels up to which names are read, and labels have units: both are weights per label."""
MAX_UNITS = 128
"""Hidden units per label, up to `MAX_ALL_UNITS` units of all labels."""
MAX_ALL_UNITS = 25_000
MAX_EPOCHS = 20
MIN_STEPS, MAX_STEPS = 200, 10_000
BATCH, SMALL_BATCH, CPU_BATCH = 64, 32, 16
"""Documents per step: on a GPU, with few documents there, and on a CPU; smaller batches have more steps.

On a CPU, where time limits the documents that are read, dev micro / macro F1 in batches of 64 and of 16: wos after
3,000 documents 75.1 / 62.2 and 77.0 / 66.3, attack after 10,000 77.9 / 21.7 and 81.5 / 24.6, ICD-10-CM blocks after
5,000 68.4 / 33.0 and 72.2 / 38.5 (experiments/results/presets/short.jsonl).
"""
SMALL = 4_000
"""Documents below which they are few."""
WARM_RATE = 0.25
"""Learning rates of a training that continues on new documents, and of one that starts from a cold start with few
documents, relative to those of a new one."""
FEW_PER_LABEL = 2
"""Documents per label up to which they are few: with 4, full rates were better on dev of wos (one run)."""
MANY_LABELS_BATCH, MANY_LABELS_EPOCHS = 256, 2
"""Batches and epochs with more labels than `MANY_LABELS`."""
ENCODER_RATES = {400: 2e-4, 800: 5e-5, 10**9: 2e-5}
"""Learning rate of encoders up to each width."""
NEVER = 1_000_000
"""Epochs without an improvement after which training stops: it never does, since learning rates fall to 0."""
CPU_MINUTES, FAST_MINUTES = 30.0, 15.0
"""The time limits of auto and fast on a CPU, unless another is given."""
NO_TREE = "tree and contrast are off: in our experiments, models without them were as good"
FROZEN = 1_000
"""As many frozen layers as any encoder has."""


@dataclass(frozen=True)
class Choice:
    """Settings by group, and sentences that say what was chosen and why."""

    settings: Groups
    reasons: tuple[str, ...] = ()


def uses_label_texts(facts: Facts) -> bool:
    """Whether names and descriptions of labels are training documents.

    Dev micro / macro F1 without and with them, attack (descriptions of several sentences): 87.8 / 33.0 and 88.4 / 37.2,
    linear model alone 81.0 / 26.8 and 83.0 / 31.3, with 500 documents 64.4 / 7.2 and 70.4 / 23.4; wos (names only):
    84.8 / 78.1 and 85.2 / 78.3.
    """
    return facts.has_names and facts.labels <= MAX_NAMED


def choose(preset: Any, facts: Facts, model_settings: Collection[str], given: Groups) -> Choice:
    """The settings of a preset for these facts.

    Args:
        preset: the name of the preset.
        facts: what is known before training.
        model_settings: the settings that the model has; others are left out.
        given: the settings of the user, which override those of the preset.
    """
    check_one_of(preset, PRESETS, "preset")
    train = given.get("train", {})
    _check_given(preset, train)
    if preset == "none":
        return Choice({})
    if facts.layers == 0:  # models on words have solvers or rates of their own
        return Choice({"data": {"descriptions": preset != "paper" and uses_label_texts(facts)}})
    choice = PRESETS[preset](facts)
    settings = {group: dict(values) for group, values in choice.settings.items()}
    settings["model"] = {name: value for name, value in settings["model"].items() if name in model_settings}
    own = settings["train"]
    if "steps" in own and train.get("batch_size", 0) > 0:  # other batches, but as many documents
        own["steps"] = max(own["steps"] * own["batch_size"] // train["batch_size"], 1)
    if "epochs" in train:  # the user's epochs replace the steps of the preset, and dev is scored after each
        for name in ("steps", "evaluations", "patience"):
            settings["train"].pop(name, None)
    if train.keys() & {"epochs", "steps"}:
        settings["train"].pop("minutes", None)
    is_off = "contrast" in model_settings and not given.get("model", {}).keys() & {"classifier", "contrast"}
    reasons = [reason for reason in choice.reasons if reason != NO_TREE or is_off]
    return Choice(settings, (_summary(preset, facts, settings, given), *reasons))


def _check_given(preset: str, train: Mapping[str, Any]) -> None:
    """Raise if settings of the user contradict each other or the preset."""
    length = next((name for name in ("steps", "epochs") if name in train), None)
    if "minutes" in train and not train["minutes"] > 0:
        raise ConfigError(f"train.minutes is {train['minutes']}; expected more than 0 minutes")
    if train.get("minutes") and length:
        raise ConfigError(
            f"train.minutes is {train['minutes']:g} and train.{length} is {train[length]}: a time limit chooses the "
            f"number of steps; leave one of the two out"
        )
    if train.get("minutes") and preset == "paper":
        raise ConfigError("the preset paper trains as published, without a time limit; use another preset, or no limit")
    if preset == "fast" and train.get("freeze", FROZEN) < FROZEN:
        raise ConfigError(
            f"the preset fast does not train the encoder, but train.freeze is {train['freeze']}; use the preset auto"
        )


def _auto(facts: Facts, on_vectors: bool = False) -> Choice:
    """The best model that we know. The runs behind each rule are in experiments/results/presets.

    `on_vectors` means that steps read vectors of the frozen encoder.
    """
    given, described = facts.documents, uses_label_texts(facts)
    if described:
        facts = replace(facts, documents=facts.documents + facts.label_texts)
    sampled = facts.labels > MANY_LABELS
    weighted = facts.labels <= MAX_NAMED
    single = facts.paths <= MAX_PATHS_ZLPR
    model: dict[str, Any] = {
        # Dev micro / macro F1 with and without tree: wos 82.5 / 73.4 and 83.1 / 74.5, attack 87.5 / 31.0 and
        # 87.7 / 32.3, arxiv 70.8 / 58.9 and 70.9 / 58.9; contrast brought nothing in earlier ablations.
        "classifier": "text",
        "contrast": 0.0,
        # zlpr and bce: attack 87.7 / 32.3 and 87.0 / 30.4, wos 83.1 / 74.5 and 82.8 / 74.8, ICD-10-CM 79.4 / 40.4 and
        # 78.3 / 37.4; with 1.7 paths per document, arxiv 70.0 / 57.6 and 70.3 / 57.8.
        "loss": "zlpr" if single and not sampled else "bce",
        # Without names: wos 81.2 / 72.1, with them 82.0 / 74.2 (two seeds).
        "name_weight": 10.0 if facts.has_names and weighted else 0.0,
        # arxiv with units 70.9 / 58.9, without 70.3 / 57.8; with zlpr on wos 82.9 / 73.3 and 83.1 / 74.5.
        "leaf_units": min(MAX_UNITS, MAX_ALL_UNITS // facts.labels) if weighted and not single else 0,
    }
    size = SMALL_BATCH if facts.documents < SMALL else BATCH
    if facts.device == "cpu" and not on_vectors:
        size = CPU_BATCH
    steps = max(_steps(facts) * BATCH // size, MIN_STEPS)
    if sampled:  # a step computes the loss on few labels, so batches are large, and rows start from centroids
        size, steps = MANY_LABELS_BATCH, max(MANY_LABELS_EPOCHS * facts.documents // MANY_LABELS_BATCH, MIN_STEPS)
    train: dict[str, Any] = {
        "batch_size": size,
        "steps": steps,
        "evaluations": 5 if facts.device == "cuda" else 1,
        "patience": NEVER,
        "encoder_lr": next(rate for width, rate in ENCODER_RATES.items() if facts.width <= width),
        "lr": 1e-3,
        "classifier_lr": 1e-3 if sampled else 3e-3,
        "warmup": 0.1,
        "schedule": "linear",
        "clip": 1.0,
        # ICD-10-CM with 98,505 labels, hierarchical F1 on test: 62.2 with these values for many labels (flat, which is
        # the same model without tree and contrast), 41.9 with those for few and no head start.
        "head_start": "on" if sampled else "off",
        "ensemble": True,
        "minutes": CPU_MINUTES if facts.device == "cpu" else 0.0,
    }
    if facts.continued:  # documents are read once; dev may not have the new labels, so it cannot select an epoch
        train |= {"steps": max(facts.documents // size, 1), "evaluations": 1}
    if facts.continued or (facts.started and given <= FEW_PER_LABEL * facts.labels):
        train |= {name: WARM_RATE * train[name] for name in ("encoder_lr", "lr", "classifier_lr")}
    data = {"max_length": 512, "descriptions": described}
    return Choice({"model": model, "train": train, "data": data, "decode": {}}, (NO_TREE,))


def _steps(facts: Facts) -> int:
    """Steps of `BATCH` documents: more with more labels, and a little more with more documents; at most `MAX_EPOCHS`.

    Half and twice as many on dev: wos (this gives 1,130) 82.5 / 71.9, 83.1 / 74.5, 82.4 / 73.1 with 512, 1,024 and
    2,048; attack (3,345) 86.7 / 29.1, 87.7 / 32.3, 88.1 / 31.5 with 1,024, 2,048 and 4,096; arxiv (1,720) 69.4 / 57.2
    and 70.0 / 57.6 with 768 and 1,536.
    """
    steps = 17 * facts.labels**0.5 * facts.documents**0.2
    most = min(MAX_EPOCHS * facts.documents / BATCH, MAX_STEPS)
    return int(min(steps, most))


def _paper(facts: Facts) -> Choice:
    """HILL as published, with the values for WOS, the paper's first data set; trees and loss of the released code."""
    model = {
        "pooling": "cls",
        "height": 3,
        "method": "authors",
        "contrast": 0.001,
        "contrast_labels": 0,
        "temperature": 1.0,
        "negatives": "all",
        "classifier": "concat",
        "whole_label_map": facts.labels <= MAX_NAMED,  # a matrix of labels × labels
        "readout": "sum",
        "loss": "bce",
        "name_weight": 0.0,
        "leaf_units": 0,
    }
    train = {
        "batch_size": 24,
        "encoder_lr": 3e-5,
        "lr": 1e-3,
        "classifier_lr": 0.0,
        "warmup": 2000.0,
        "schedule": "constant",
        "clip": 0.0,
        "epochs": 200,
        "patience": 10,
        "precision": "fp32",
        "head_start": "off",
        "ensemble": False,
    }
    decode = {"strategy": "raw", "threshold": 0.5, "tune": "off", "calibrate": "off"}
    return Choice({"model": model, "train": train, "data": {"max_length": 512}, "decode": decode})


def _fast(facts: Facts) -> Choice:
    """As auto, on vectors of the frozen encoder, which are computed once."""
    auto = _auto(facts, on_vectors=True)
    train = auto.settings["train"] | {"freeze": FROZEN, "steps": 2 * auto.settings["train"]["steps"]}
    train["minutes"] = min(train["minutes"], FAST_MINUTES)
    reason = "fast: the encoder is not trained; its vectors are computed once"
    return Choice(auto.settings | {"train": train}, (*auto.reasons, reason))


PRESETS: dict[str, Callable[[Facts], Choice]] = {
    "auto": _auto,
    "paper": _paper,
    "fast": _fast,
    "none": lambda facts: Choice({}),
}


def _summary(preset: str, facts: Facts, settings: Groups, given: Groups) -> str:
    """The sentence that a training prints before it starts."""
    train = settings["train"] | given.get("train", {})
    model = settings["model"] | given.get("model", {})
    data = settings["data"] | given.get("data", {})
    texts = facts.label_texts if data.get("descriptions") else 0
    size, per_epoch = train["batch_size"], max(math.ceil((facts.documents + texts) / train["batch_size"]), 1)
    steps = train.get("steps") or train["epochs"] * per_epoch
    paths = "one path each" if facts.paths < 1.05 else f"{facts.paths:.1f} paths each"
    names = ", label names" if model.get("name_weight") else ""
    more = f", names and descriptions of labels as {texts:,} more documents" if texts else ""
    units = f", {model['leaf_units']} units per label" if model.get("leaf_units") else ""
    mixed = ", mixed with a linear model" if train.get("ensemble") else ""
    return (
        f"preset {preset}: {facts.documents:,} documents, {facts.labels:,} labels, {paths} → {steps:,} steps of {size} "
        f"({steps / per_epoch:.1f} epochs), loss {model['loss']}{names}{more}{units}{mixed}"
    )


# Time limits


@dataclass(frozen=True)
class Plan:
    """Settings with which a training ends in time, seconds that its end is expected to take, and a sentence."""

    settings: Groups
    reserved: float
    reason: str


# What a shorter training costs, in points of micro F1 on dev; the runs are in experiments/results/presets.
STEP_LOSS = 0.6
"""2^-h of the steps cost this times h^1.5: half 0.6 (wos), 0.6 (arxiv), 1.0 (attack), a quarter 1.5 to 1.9."""
LENGTH_LOSS = 8.0
"""Times the share of tokens that are cut off: 128 tokens cost 5.9 on wos and 0.9 on arxiv."""
HALF_LOSS = 1.0
"""Freezing the lower half of the encoder: 1.0 (wos), 0.2 (arxiv), 1.5 (attack)."""
FROZEN_LOSS = 8.0
"""Freezing the whole encoder: 17 (wos), 6 (arxiv), 15 (attack), of which a linear model beside it makes up a part."""
MARGIN = 0.9
"""Share of the time that is planned."""
TUNING_SECONDS, TUNING_SHARE = 5.0, 0.05
"""Time for tuning and saving: at most this long, and at most this share of the time."""
SCORED_SHARE = 0.1
"""Share of the time in which dev is scored, and as much for test; of more documents, a sample is used."""
LENGTHS = (512, 256, 128, 64)


def fit_to_time(
    settings: Groups, speed: Any, lengths: IntArray, layers: int, documents: int, dev: int, test: int, seconds: float
) -> Plan:
    """Choose frozen layers, maximum length, steps and dev documents with which a training ends in this many seconds.

    Args:
        settings: all settings; steps and length are those that would be best without a limit.
        speed: seconds per document (`hill.train.timing.Speed`), measured with the lengths below.
        lengths: tokens per document of a sample.
        layers: layers of the encoder.
        documents: training documents.
        dev: dev documents.
        test: documents that are scored after training.
        seconds: the time that is left.
    """
    train, length = settings["train"], settings["data"]["max_length"]
    size = train["batch_size"] * train["accumulate"]
    wanted = train["steps"] or train["epochs"] * math.ceil(documents / size)
    best: tuple[float, Plan] | None = None
    for most in (each for each in LENGTHS if each <= max(length, LENGTHS[-1])):
        kept = float(np.minimum(lengths, most).sum() / max(lengths.sum(), 1))
        predict = speed.predict * kept
        encode = speed.encode * kept
        scored = Scored(*(int(min(each, max(SCORED_SHARE * seconds / predict, 50))) for each in (dev, test)))
        end = predict * sum(scored) + min(TUNING_SECONDS, TUNING_SHARE * seconds)
        for freeze in dict.fromkeys((train["freeze"], max(train["freeze"], layers // 2), layers)):
            left, loss = MARGIN * seconds - end, LENGTH_LOSS * (1 - kept)
            if freeze >= layers:
                left -= encode * documents
                cost, loss = speed.head, loss + FROZEN_LOSS * (train["freeze"] < layers)
            else:
                left -= encode * documents * (train["head_start"] == "on")  # which reads all documents once
                cost = speed.train * kept * (3 * layers - 2 * freeze) / (3 * layers)
                loss += HALF_LOSS * (freeze > train["freeze"])
            steps = int(min(left / (cost * size), wanted))
            if steps < 1:
                continue
            loss += STEP_LOSS * math.log2(wanted / steps) ** 1.5
            if best is None or loss < best[0] - 1e-9:
                best = loss, _plan(most, freeze, layers, steps, wanted, scored, Scored(dev, test), end)
    if best is None:
        raise ConfigError(
            f"{max(seconds, 0):.0f} seconds of the time limit are left, but scoring {sum(scored):,} documents and one "
            "step take longer; allow more minutes"
        )
    return best[1]


class Scored(NamedTuple):
    """Numbers of documents of dev and test."""

    dev: int
    test: int


def _plan(
    length: int, freeze: int, layers: int, steps: int, wanted: int, used: Scored, given: Scored, end: float
) -> Plan:
    parts = [f"{steps:,} of {wanted:,} steps" if steps < wanted else f"all {steps:,} steps", f"{length} tokens"]
    if freeze:
        parts.append("encoder frozen" if freeze >= layers else f"{freeze} of {layers} layers frozen")
    shares = dict(zip(used._fields, zip(used, given, strict=True), strict=True))
    parts += [f"{few:,} of {all_:,} {name} documents" for name, (few, all_) in shares.items() if few < all_]
    settings: Groups = {
        "train": {"steps": steps, "freeze": freeze, "evaluations": 1},
        "data": {"max_length": length} | {f"max_{name}": few * (few < all_) for name, (few, all_) in shares.items()},
    }
    return Plan(settings, end, f"to end in time: {', '.join(parts)}")
