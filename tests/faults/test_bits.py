"""Flipped bits: a damaged file is refused with its name; training continues from the last good checkpoint."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hill.classifier import HillClassifier
from hill.errors import CheckpointError
from hill.train.trainer import Resumed, Step
from tests.faults import record, times
from tests.faults.helpers import learn, lost, states, tiny
from tests.train.test_trainer import toy_data


def flips(folder: Path, each: int, seed: int) -> Iterator[Path]:
    """Flip one bit of one file at a time, at several positions per file; yields the damaged file."""
    draw = np.random.default_rng(seed)
    for file in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.jsonl", ".lock")
    ):
        content = file.read_bytes()
        for position in [0, len(content) - 2, *draw.integers(0, len(content), each).tolist()]:
            damaged = bytearray(content)
            damaged[position] ^= 1 << int(draw.integers(8))
            file.write_bytes(damaged)
            yield file
        file.write_bytes(content)


def test_a_flipped_bit_in_a_model_is_refused(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "model")
    seen = set()
    for file in flips(tmp_path / "model", times(2, 40), 0):
        seen.add(file.name)
        try:
            HillClassifier.load(tmp_path / "model")
        except CheckpointError as error:
            named = file.name in str(error) or (file.name == "files.json" and "lacks" in str(error))
            record("bit flipped in a model", 0 if named else file.stat().st_size)
        else:
            record("bit flipped in a model", file.stat().st_size)
    assert seen >= {"config.json", "taxonomy.json", "tokenizer.json", "model.safetensors", "thresholds.json"}
    assert seen >= {"coding_tree.json", "metrics.json", "files.json"}
    HillClassifier.load(tmp_path / "model")


def test_models_without_checksums_are_loaded(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "model")
    (tmp_path / "model" / "files.json").unlink()
    texts = ["fur milk", "leaf root"]
    found, wanted = (HillClassifier.load(folder).predict_proba(texts) for folder in (tmp_path / "model", reference))
    assert np.array_equal(found, wanted)


@pytest.fixture(scope="module")
def stopped(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was stopped in its second epoch."""
    out = tmp_path_factory.mktemp("bits") / "out"
    model = tiny(tiny_encoder)
    for event in model.training(toy_data(model.taxonomy), out):
        if isinstance(event, Step) and event.step == 9:
            break
    assert len(states(out)) == 2
    return out


def test_a_flipped_bit_in_a_checkpoint(tiny_encoder: Path, reference: Path, stopped: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    before, latest = states(out)
    for file in flips(latest, times(0, 4), 1):
        model = tiny(tiny_encoder)
        reports = model.training(toy_data(model.taxonomy), out, resume=True)
        found = next(report for report in reports if isinstance(report, Resumed))
        reports.close()
        assert latest.name in found.damaged and before.name == f"state-{found.step:08d}-0001"
        record("bit flipped in a checkpoint", 0 if file.name in found.damaged else file.stat().st_size)
    damage(latest / "weights.safetensors")
    learn(tiny_encoder, tmp_path / "out", resume=True)
    record("training finished from the checkpoint before", lost(reference, out))


def test_resuming_without_a_good_checkpoint_is_an_error(tiny_encoder: Path, stopped: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    for state in states(out):
        damage(state / "optimiser.safetensors")
    with pytest.raises(CheckpointError, match=r"optimiser.safetensors' is damaged.* remove '.*' to start over"):
        learn(tiny_encoder, out, resume=True)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
