"""Compare tiny models of every kind with the numbers of a committed file, so that drift is noticed.

The expected numbers are earlier output of this package. They do not show that a number is right, which is what the
other tests do; they show that it is still the same after a change of this package, torch, transformers, numpy, scipy or
scikit-learn.

`python -m tests.test_consistency` writes the file again. It keeps every record that still agrees, so that the diff of
the file shows what has changed. Run it only when you know why.

Models take a few steps of SGD, and not of the package's Adam, except in the cases of the training loop. Adam divides by
the size of the gradient: weights whose gradient is 0 except for rounding errors, such as a bias before a batch
normalization, move by a full step in a random direction, and scores after training agree to 1e-2 only. The models in
the cases of the training loop have no such weights.
"""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_array
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.decode import STRATEGIES, CollectedScores, DecodeConfig, tune
from hill.decode.decoder import CALIBRATIONS, TUNE_METRICS, TUNINGS
from hill.encoders import rcnn
from hill.models import MODELS, base
from hill.settings import Groups
from hill.train import Session, Split, Step
from hill.train.trainer import make_steps
from tests.conftest import animals_taxonomy, toy_documents
from tests.fixtures.make import MODELS as SAVED_MODELS
from tests.fixtures.make import make_encoder, unpack
from tests.made import DROPOUTS
from tests.models.test_models import SMALL, VARIANTS

FILE = Path(__file__).parent / "fixtures" / "consistency.json"
PACKAGES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "tokenizers", "numba")
TAXONOMY = animals_taxonomy()
TEXTS = toy_documents(5, seed=3)[0]

SAVED = 1e-6
"""Tolerance of scores of saved models. Between AVX-512 and SSE instructions they differ by 2e-7."""
STARTED = 3e-6
"""Tolerance of scores of new models, and the least of what training changes. Between AVX-512 and SSE instructions the
former differ by 1e-7, the latter by 7e-7 where the sensitivity is low."""
FACTOR = 30
"""Tolerance of what training changes, in units of its sensitivity. Between CPUs it differs by 8 of them."""
NOISE = 1e-7
"""The sensitivity of numbers is how far they move if every weight changes by this share of its value, about one
rounding error of float32. It is measured when the file is written."""
MOST_SENSITIVE = 2e-4
"""Cases that are more sensitive than this would test too little, and need other settings."""

Record = dict[str, Any]
"""The numbers of a case: scores before training (start), losses, sizes of the first gradients, scores and labels after
training; of decoding, thresholds and how many documents get each label (counts)."""
Run = Callable[[Path, int], Record]
"""Runs a case, given the folder of the encoders and the seed of the noise on the weights; 0 for no noise."""


# Cases


@dataclass(frozen=True)
class Case:
    """A model to train: its kind, its settings by group, and the folder of its encoder."""

    kind: str
    settings: Groups
    encoder: str = "bert"
    loop: bool = False
    """Trained by the training loop of the package, in place of a few steps of SGD."""


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
PLACES = {"vocab_size": 22, "max_position_embeddings": 64, "pad_token_id": 0}
ENCODERS: dict[str, transformers.PretrainedConfig] = {
    "bert": transformers.BertConfig(**SIZES, **PLACES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "bert-dropout": transformers.BertConfig(**SIZES, **PLACES),
    "roberta": transformers.RobertaConfig(**SIZES, **PLACES, hidden_act="gelu_new"),
    "distilbert": transformers.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=16, **PLACES),
    "mpnet": transformers.MPNetConfig(**SIZES, **PLACES),
}
LOOPS: dict[str, tuple[str, Groups]] = {
    "plain": ("hgclr", {"train": {"plain": True}}),
    "accumulate": ("hiagm", {"train": {"accumulate": 2, "clip": 0.1, "weight_decay": 0.1}}),
    "rates": ("flat", {"train": {"classifier_lr": 0.02, "schedule": "constant", "warmup": 2.0, "freeze": 1}}),
    "head-start": ("flat", {"train": {"head_start": "on", "head_epochs": 3}}),
    "sample": ("flat", {"model": {"sample": 3}}),
    "windows": ("flat", {"data": {"max_length": 5, "windows": 3}}),
    "keep": ("flat", {"decode": {"keep": 3}}),
    "balance": ("linear", {"model": {"balance": True, "c": 0.3, "loss": "conditional-softmax"}}),
}
UNCHANGED = {"strategy": "closure", "tune": "off", "calibrate": "off"}
"""Settings of decoding with which scores stay as they are, and labels above 0.5 are predicted."""


def model_cases() -> Iterator[tuple[str, Case]]:
    """The variants of the conformance suite, all kinds and other encoders with dropout, and the training loop."""
    for name, (kind, model) in VARIANTS.items():
        yield name, Case(kind, {"model": no_dropout(kind) | model}, loop=MODELS[kind].has_solver)
    for kind in MODELS:
        if not MODELS[kind].has_solver:
            yield f"dropout-{kind}", Case(kind, {"model": SMALL if kind == "textrcnn" else {}}, "bert-dropout")
    for encoder in ("roberta", "distilbert", "mpnet"):
        yield f"encoder-{encoder}", Case("flat", {"model": {}}, encoder)
    for name, (kind, groups) in LOOPS.items():
        yield f"loop-{name}", Case(kind, groups | {"model": no_dropout(kind) | groups.get("model", {})}, loop=True)


def decode_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every strategy, calibration, tuning and metric of decoding."""
    for strategy in STRATEGIES:
        yield f"strategy-{strategy}", {"strategy": strategy, "calibrate": "temperature"}
    for calibration in CALIBRATIONS:
        yield f"calibrate-{calibration}", {"strategy": "closure", "calibrate": calibration}
    for tuning in TUNINGS:
        yield f"tune-{tuning}", {"strategy": "top-down", "calibrate": "isotonic", "tune": tuning}
    for metric in TUNE_METRICS:
        yield f"tune-for-{metric}", UNCHANGED | {"strategy": "ancestors", "tune": "label", "tune_metric": metric}
    yield "strategy-two-paths", UNCHANGED | {"strategy": "path", "k": 2, "abstain": 0.8}


def no_dropout(kind: str) -> dict[str, Any]:
    return {key: 0.0 for key in DROPOUTS if hasattr(MODELS[kind].Config, key)}


# Running a case


@cache
def documents(count: int, seed: int) -> Documents:
    return label_documents(*toy_documents(count, seed), TAXONOMY)


def make_encoders(folder: Path) -> None:
    """Encoders with weights large enough that every part of a layer changes the scores."""
    for name, config in ENCODERS.items():
        make_encoder(folder / name)
        transformers.AutoModel.from_config(config).save_pretrained(folder / name)
        file = folder / name / "model.safetensors"
        shapes = {key: tuple(value.shape) for key, value in load_file(file).items()}
        save_file({key: draw_weight(key, shape) for key, shape in shapes.items()}, file, {"format": "pt"})


def draw_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Random weights that depend on their name only, not on how transformers initializes an encoder."""
    weight = np.random.default_rng(list(name.encode())).normal(0, 0.5, shape)
    is_scale = len(shape) == 1 and name.endswith(".weight")  # of a layer normalization
    return torch.from_numpy(1 + 0.2 * weight if is_scale else weight).float()


def run_training(case: Case, encoders: Path, noise: int) -> Record:
    """Build a model, train it, and score the texts before and after."""
    encoder = {"encoder": str(encoders / case.encoder), "pooling": "mean"}
    train = {"epochs": 1, "batch_size": 8, "lr": 0.01, "encoder_lr": 0.01, "head_start": "off", "device": "cpu"}
    settings = case.settings | {
        "model": encoder | case.settings["model"],
        "train": train | case.settings.get("train", {}),
        "decode": UNCHANGED | case.settings.get("decode", {}),
    }
    classifier = HillClassifier(TAXONOMY, case.kind, settings, preset=None)
    data = {"train": documents(24, seed=1), "dev": documents(6, seed=2)}
    word_dropout = 0.0 if case.settings["model"].get("dropout") == 0.0 else rcnn.WORD_DROPOUT
    with (
        patch.object(rcnn, "WORD_DROPOUT", word_dropout),
        patch.object(base, "MIN_WORD_COUNT", 1),
        TemporaryDirectory() as scratch,
        closing(classifier.training(data, Path(scratch))) as reports,
    ):
        next(reports)  # the model is built, but not trained
        add_noise(classifier, noise)
        start = score(classifier)
        if case.loop:
            trained: Record = {"losses": [report.loss.item() for report in reports if isinstance(report, Step)]}
        else:
            trained = take_steps(classifier)
    return {"start": start, **trained, "scores": score(classifier), "labels": classifier.predict(TEXTS)}


def run_saved(folder: Path, encoders: Path, noise: int) -> Record:
    """Score the texts with a saved model, train it further, and score them again."""
    with TemporaryDirectory() as scratch:
        classifier = HillClassifier.load(unpack(folder, Path(scratch)), device="cpu")
    add_noise(classifier, noise)
    return {"start": score(classifier), **take_steps(classifier), "scores": score(classifier)}


def run_decoding(settings: dict[str, Any], encoders: Path, noise: int) -> Record:
    """Tune decoding on random scores, and decode them."""
    labels = documents(200, seed=4).labels
    logits = np.random.default_rng(5).normal(np.where(labels.toarray(), 1.5, -1.5), 2.0)
    if noise:
        logits *= 1 + NOISE * np.random.default_rng(noise).normal(size=logits.shape)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    tuned = tune(TAXONOMY, DecodeConfig(**settings), CollectedScores(scores, labels))
    chosen, effective = tuned.decoder(TAXONOMY).decide(scores)
    thresholds = [tuned.config.threshold, *(() if tuned.thresholds is None else tuned.thresholds)]
    some = slice(len(TEXTS))
    found = [TAXONOMY.decode(np.flatnonzero(row)) for row in chosen[some]]
    return {"thresholds": thresholds, "counts": chosen.sum(axis=0), "scores": effective[some], "labels": found}


def take_steps(classifier: HillClassifier) -> Record:
    """Train for three steps of SGD; a linear model, which is fitted at once, stays as it is."""
    model, data = classifier.stored.model, documents(24, seed=1)
    if model.has_solver:
        return {}
    torch.manual_seed(0)
    tokens = tokenize(data.texts, classifier.stored.tokenizer, 32)
    session = Session(model, classifier.train_config, torch.device("cpu"))
    steps = make_steps(session, Split(tokens, data.labels))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model.train()
    losses, gradients = [], []
    for batch in np.arange(24).reshape(3, 8):
        loss = model(steps.batch(batch)).loss
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        gradients.append(gradient_sizes(model))
        clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return {"losses": losses, "gradients": gradients[0]}


def gradient_sizes(model: torch.nn.Module) -> list[float]:
    """The logarithms of the norms of the gradients of the parts, some of which hardly move scores in a few steps."""
    squares: dict[str, float] = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            part = name.split(".")[0]
            squares[part] = squares.get(part, 0.0) + weight.grad.double().square().sum().item()
    return [np.log(squares[part]) / 2 for part in sorted(squares) if squares[part]]


@torch.no_grad()
def add_noise(classifier: HillClassifier, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for weight in classifier.stored.model.parameters() if seed else ():
        weight *= 1 + NOISE * torch.randn(weight.shape, generator=draw)


def score(classifier: HillClassifier) -> Any:
    """The model's own scores of the texts, without calibration."""
    found = np.zeros((len(TEXTS), len(TAXONOMY)))
    for places, scores in classifier.scores(TEXTS):
        found[places] = scores.toarray() if isinstance(scores, csr_array) else scores
    return found


SAVED_FOLDERS = sorted(path for path in SAVED_MODELS.glob("*/*") if path.is_dir())
RUNS: dict[str, Run] = {
    **{name: partial(run_training, case) for name, case in model_cases()},
    **{f"saved-{folder.parent.name}-{folder.name}": partial(run_saved, folder) for folder in SAVED_FOLDERS},
    **{name: partial(run_decoding, settings) for name, settings in decode_cases()},
}


# Comparing with the file


def versions() -> dict[str, str]:
    """What numbers may depend on."""
    packages = {name: version(name) for name in PACKAGES}
    return packages | {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


@cache
def draws() -> dict[str, list[float]]:
    """The first random numbers of torch and numpy: builds of torch for other machines draw other ones."""
    torch.manual_seed(0)
    ones = torch.ones(16)
    drawn = {"dropout": functional.dropout(ones), "exponential": ones.clone().exponential_(), "normal": ones.normal_()}
    every: dict[str, Any] = drawn | {"numpy": np.random.default_rng(0).normal(size=16)}
    return {name: rounded(found) for name, found in every.items()}


def differences(wanted: Record, found: Record) -> list[str]:
    """Where numbers differ from those of the file by more than the tolerance."""
    problems = []
    for key, tolerance in wanted["tolerance"].items():
        before, now = (np.asarray(record.get(key, ()), dtype=float) for record in (wanted, found))
        if before.shape != now.shape:
            problems.append(f"{key} are of shape {now.shape} and were of shape {before.shape}")
        elif not (apart := np.abs(before - now).max(initial=0)) <= tolerance:
            problems.append(f"{key} differ by {apart:.1e}, more than {tolerance:.1e}")
    for text, labels in enumerate(wanted.get("labels", ())):
        if None not in (labels, other := found["labels"][text]) and labels != other:
            problems.append(f"labels of text {text} are {other} and were {labels}")
    return problems


def rounded(values: Any) -> Any:
    return np.asarray(values, dtype=float).round(8).tolist()


@cache
def read_file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def explain(problem: str) -> str:
    both = read_file()["made"], versions()
    made, now = (", ".join(f"{key} {value}" for key, value in each.items()) for each in both)
    return (
        f"{problem}.\n{FILE.name} was made with {made}.\nThis is {now}.\nFind out which change moves these numbers, "
        "and whether it should. Only then write the file again with `python -m tests.test_consistency`, and give the "
        "reason in the commit."
    )


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("encoders")
    make_encoders(folder)
    return folder


def draws_agree() -> bool:
    """Whether random numbers are those of the file; only a machine of another type may draw other ones."""
    wanted = read_file()["draws"]
    if all(np.allclose(wanted[name], found, rtol=0, atol=1e-6) for name, found in draws().items()):
        return True
    assert read_file()["made"]["machine"] != versions()["machine"], explain("torch or numpy draws other random numbers")
    return False


@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_are_those_of_the_file(name: str, encoders: Path) -> None:
    wanted = read_file()["cases"].get(name)
    assert wanted, f"{FILE.name} has no case {name}; add it with `python -m tests.test_consistency`"
    if not draws_agree():
        wanted = {"start": wanted.get("start", ()), "tolerance": {"start": wanted["tolerance"].get("start", 0.0)}}
    problems = differences(wanted, RUNS[name](encoders, 0))
    assert not problems, explain(f"{name}: {'; '.join(problems)}")


def test_every_model_is_there_and_nothing_else() -> None:
    assert {case.kind for _, case in model_cases()} == {*MODELS}
    assert {*read_file()["cases"]} == {*RUNS}
    assert FILE.stat().st_size < 200_000


# Writing the file


def make_record(name: str, encoders: Path) -> Record:
    """The numbers of a case with their tolerances; no labels for texts with a score near the threshold."""
    found, *noisy = (RUNS[name](encoders, noise) for noise in range(4))
    record: Record = {key: rounded(values) for key, values in found.items() if key != "labels"}
    record["tolerance"] = {key: find_tolerance(name, key, [found, *noisy]) for key in record}
    if "labels" in found:
        near = np.abs(np.asarray(found["scores"]) - 0.5).min(axis=1) < 10 * record["tolerance"]["scores"]
        same = [all(other["labels"][text] == labels for other in noisy) for text, labels in enumerate(found["labels"])]
        sure = [stable and not close for stable, close in zip(same, near, strict=True)]
        record["labels"] = [labels if is_sure else None for labels, is_sure in zip(found["labels"], sure, strict=True)]
    return record


def find_tolerance(name: str, key: str, records: list[Record]) -> float:
    """How far numbers may be apart, from records of which all but the first have noise."""
    if key == "start":
        return SAVED if name.startswith("saved-") else STARTED
    found, *noisy = (np.asarray(record[key], dtype=float) for record in records)
    sensitivity = max(np.abs(found - other).max(initial=0) for other in noisy)
    if not sensitivity <= MOST_SENSITIVE:
        sys.exit(f"{name}: {key} move by {sensitivity:.1e} if weights change by {NOISE:.0e}; choose other settings")
    return float(f"{max(STARTED, FACTOR * sensitivity):.0e}")


def main() -> None:
    """Write the file, and tell which cases are new or have changed."""
    torch.set_num_threads(1)
    cases = read_file()["cases"] if FILE.exists() else {}
    with TemporaryDirectory() as scratch:
        make_encoders(Path(scratch))
        for name in RUNS:
            record = make_record(name, Path(scratch))
            known = name in cases and cases[name].keys() == record.keys()
            problems = differences(cases[name], record) if known else ["new"]
            if problems:
                cases[name] = record
                sys.stdout.write(f"{name}: {'; '.join(problems)}\n")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(cases[name])}" for name in RUNS)
    head = f' "made": {json.dumps(versions())},\n "draws": {json.dumps(draws())}'
    FILE.write_text(f'{{\n{head},\n "cases": {{\n{lines}\n }}\n}}\n')


if __name__ == "__main__":
    main()
