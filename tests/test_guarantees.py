"""What users may rely on: the same seed, old models, threads, forks, no traces left, no leaks."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill import models
from hill.classifier import HillClassifier
from hill.errors import CheckpointError
from hill.io import CHECKSUMS
from hill.models.inference import upgrade_settings
from tests.conftest import ROOT, animals_taxonomy, toy_documents
from tests.fixtures.make import MODELS, make_encoder, unpack
from tests.leaks import measure

KEPT = sorted(path for path in MODELS.glob("*/*") if path.is_dir())
TRAINED = ("linear", "flat", "hill", "hgclr")
TEXTS = toy_documents(40, seed=3)[0]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, or forks")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the same name wherever the tests run: a model keeps the name of its encoder."""
    folder = tmp_path_factory.mktemp("made") / "encoder"
    make_encoder(folder)
    return folder


def train(name: str, encoder: str) -> HillClassifier:
    model = {} if name == "linear" else {"encoder": encoder}
    settings: Any = {"model": model, "train": {"epochs": 2, "batch_size": 8, "seed": 7, "device": "cpu"}}
    return HillClassifier(animals_taxonomy(), name, settings, preset=None).fit(*toy_documents(40, seed=1))


def digest(classifier: HillClassifier) -> str:
    """A sum over every bit of the weights and of the scores of some texts."""
    weights = sorted(classifier.stored.model.state_dict().items())
    parts = [name.encode() + value.cpu().contiguous().numpy().tobytes() for name, value in weights]
    return hashlib.sha256(b"".join([*parts, classifier.predict_proba(TEXTS).tobytes()])).hexdigest()


@pytest.fixture(scope="module")
def digests(encoder: Path) -> dict[str, str]:
    torch.set_num_threads(1)  # sums are added up in another order by two
    return {name: digest(train(name, str(encoder))) for name in TRAINED}


def test_two_trainings_are_the_same_to_the_bit(digests: dict[str, str], encoder: Path) -> None:
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    assert {name: digest(train(name, str(encoder))) for name in TRAINED} == digests
    assert len(set(digests.values())) == len(TRAINED)


def train_elsewhere(encoder: str) -> tuple[dict[str, str], list[list[str]]]:
    found = {name: digest(train(name, encoder)) for name in TRAINED}
    return found, HillClassifier.load(MODELS / "0.1.0" / "hill", device="cpu").predict(TEXTS)


def test_another_process_trains_and_predicts_the_same(
    digests: dict[str, str], encoder: Path, alone: list[list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(train_elsewhere, (str(encoder),)) == (digests, alone[0])


def test_there_is_a_saved_model_of_every_kind() -> None:
    kinds = {json.loads((folder / "config.json").read_text())["model"] for folder in KEPT}
    assert kinds == {*models.MODELS}
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < 750_000 * len({*MODELS.iterdir()})


@pytest.mark.parametrize("folder", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_models_of_earlier_releases_give_the_same_scores(folder: Path, tmp_path: Path) -> None:
    said = json.loads(folder.with_suffix(".json").read_text())
    classifier = HillClassifier.load(unpack(folder, tmp_path), device="cpu")
    np.testing.assert_allclose(classifier.predict_proba(said["texts"]), said["scores"], rtol=0, atol=1e-6)
    assert classifier.predict(said["texts"]) == said["labels"]
    classifier.save(tmp_path / "again")
    again = HillClassifier.load(tmp_path / "again", device="cpu")
    assert np.array_equal(again.predict_proba(said["texts"]), classifier.predict_proba(said["texts"]))


@pytest.mark.parametrize(
    ("model", "name", "unused", "used"),
    [
        ("hill", "leaves", "none", "names"),
        ("hill", "positives", "own", "alike"),
        ("hill", "views", "own", "shared"),
        ("hill", "norm", "batch", "layer"),
        ("hill", "label_rank", 0, 7),
        ("hill", "layers", 0, 1),
        ("hill", "overlap", 32, 64),
        ("hill", "pool", "mean", "max"),
        ("textrcnn", "gru_layers", 1, 2),
        ("textrcnn", "top", 1, 2),
        ("hgclr", "heads", 0, 4),
    ],
)
def test_a_used_setting_that_was_removed_is_named(
    tmp_path: Path, model: str, name: str, unused: Any, used: Any
) -> None:
    shutil.copytree(MODELS / "0.1.0" / model, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    group = "data" if name in ("overlap", "pool") else "model"
    assert config["settings"][group][name] == unused
    config["settings"][group][name] = used
    file.write_text(json.dumps(config))
    (tmp_path / "model" / CHECKSUMS).unlink(missing_ok=True)
    with pytest.raises(
        CheckpointError, match=f"made with {group}.{name} = {used!r}, which no longer exists; train it ag"
    ):
        HillClassifier.load(tmp_path / "model")


def test_removed_settings_matter_to_the_model_that_had_them_and_to_a_training_that_resumes() -> None:
    saved: Any = {"model": {"layers": 2, "keep_temperature": 0.5}, "train": {"epochs": 3}, "decode": {"k": 2}}
    for group, name, value in (("train", "stages", "two"), ("decode", "support", 5)):
        older = saved | {group: saved[group] | {name: value}}
        upgraded = upgrade_settings("hgclr", older, Path("x"))
        assert upgraded == {"model": {"layers": 2}, "train": {"epochs": 3}, "decode": {"k": 2}}
        with pytest.raises(CheckpointError, match=rf"'x' was made with {group}.{name} = {value!r}, which no longer"):
            upgrade_settings("hgclr", older, Path("x"), resume=True)


@pytest.fixture(scope="module")
def pair() -> list[HillClassifier]:
    return [HillClassifier.load(MODELS / "0.1.0" / name, device="cpu") for name in ("hill", "flat")]


@pytest.fixture(scope="module")
def alone(pair: list[HillClassifier]) -> list[list[list[str]]]:
    return [classifier.predict(TEXTS) for classifier in pair]


def test_two_classifiers_do_not_know_of_each_other(pair: list[HillClassifier], alone: list[list[list[str]]]) -> None:
    assert alone[0] != alone[1]
    together = [[classifier.predict([text])[0] for classifier in pair] for text in TEXTS]
    assert [list(found) for found in zip(*together, strict=True)] == alone


def test_threads_predict_at_once(pair: list[HillClassifier], alone: list[list[list[str]]]) -> None:
    scores = [classifier.predict_proba(TEXTS) for classifier in pair]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda turn: pair[turn % 2].predict_proba(TEXTS), range(48)))
        labels = list(pool.map(lambda turn: pair[turn % 2].predict(TEXTS), range(16)))
    assert all(np.array_equal(each, scores[turn % 2]) for turn, each in enumerate(found))
    assert all(each == alone[turn % 2] for turn, each in enumerate(labels))


@linux
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_predicts(pair: list[HillClassifier]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # whose second thread is not there in the child
    try:
        before = pair[0].predict_proba(TEXTS * 5)
        if not (child := os.fork()):
            signal.alarm(100)
            os._exit(0 if np.array_equal(pair[0].predict_proba(TEXTS * 5), before) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(pair[0].predict_proba(TEXTS * 5), before)
    finally:
        torch.set_num_threads(threads)


def random_states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), torch.get_rng_state().tolist(), kind, keys.tolist(), *rest  # type: ignore[union-attr]


def test_predicting_leaves_random_numbers_alone(pair: list[HillClassifier], tmp_path: Path) -> None:
    before = random_states()
    for classifier in pair:
        classifier.predict(TEXTS)
        classifier.predict_proba(TEXTS)
        classifier.explain(TEXTS[0])
        classifier.save(tmp_path / classifier.name)
    assert random_states() == before


def test_training_seeds_torch_alone(encoder: Path) -> None:
    before, seen = random_states(), []
    for _ in range(2):
        train("flat", str(encoder))
        seen.append(random_states())
    assert seen[0] == seen[1], "what torch draws after a training depends on the training alone"
    assert seen[0][0] == before[0] and seen[0][2:] == before[2:], "random and numpy.random are left alone"


QUIET = """
import sys
from hill import HillClassifier, models
from tests.conftest import animals_taxonomy, toy_documents
texts, labels = toy_documents(24, 1)
for name, model in {"linear": {}, "hill": {"encoder": sys.argv[1]}}.items():
    settings = {"model": model, "train": {"epochs": 1, "device": "cpu"}}
    classifier = HillClassifier(animals_taxonomy(), name, settings).fit(texts, labels)
    classifier.save(sys.argv[2])
    loaded = HillClassifier.load(sys.argv[2])
    assert loaded.predict(texts) == classifier.predict(texts)
    loaded.evaluate, loaded.explain(texts[0]).text()
"""


def test_nothing_warns_or_prints(encoder: Path, tmp_path: Path) -> None:
    known = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", QUIET, str(encoder), str(tmp_path / "model")]
    done = subprocess.run(command, env=known, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@linux
def test_nothing_leaks_over_trainings() -> None:
    """The short form; `python -m tests.leaks 1000` is the long one."""
    held = list(measure(cycles=18, every=6))
    assert held[-1].megabytes - held[0].megabytes < 8
    assert {each.files for each in held} == {held[0].files} and held[-1].threads <= held[0].threads
