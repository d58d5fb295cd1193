"""Sharded text encoders: ranks that hold a part each learn what one process learns, and leave what one would leave."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks import ALWAYS, Job, apart, learn, numbers, read, start, still_encoder

pytest.importorskip("accelerate")

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
CASES = [
    Job("flat", "flat", train={"accumulate": 2, "head_start": "off", "clip": 0.1, "epochs": 5}),
    Job("hill", "hill", {"contrast": 0.5}),
    Job("hgclr", "hgclr", {"contrast": 0.5, "keep": 0.35}),
    Job("stages", "hill", {"negatives": "weighted"}, {"stages": "two", "contrast_epochs": 1}),
    Job("frozen", "flat", {}, {"head_start": "off", "freeze": 1, "recompute": True}),
]
STOPPED = Job("stopped", "hill", {"contrast": 0.5}, ALWAYS, stop=13)
TURNED = replace(STOPPED, name="turned")


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder without dropout."""
    return still_encoder(tiny_encoder, tmp_path_factory.mktemp("still") / "encoder")


@pytest.fixture(scope="module")
def runs(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one process, and 2 and 4 ranks with shards, leave of all trainings, and of what the others had begun."""
    found = {count: tmp_path_factory.mktemp(f"ranks{count}") for count in (1, 2, 4)}
    start(learn, 1, encoder, found[1], [*CASES, TURNED])
    hand_on(found[1], found[2], TURNED.name)
    start(learn, 2, encoder, found[2], [*CASES, STOPPED, replace(TURNED, stop=0, resume=True)], SHARDED)
    for count in (1, 4):
        hand_on(found[2], found[count], STOPPED.name)
    resumed = replace(STOPPED, stop=0, resume=True)
    start(learn, 1, encoder, found[1], [resumed])
    start(learn, 4, encoder, found[4], [*CASES[:2], resumed], SHARDED)
    return found


def hand_on(giver: Path, taker: Path, name: str) -> None:
    shutil.copytree(giver / name, taker / name)


@pytest.mark.parametrize(("name", "count"), [(job.name, 2) for job in CASES] + [(job.name, 4) for job in CASES[:2]])
def test_shards_learn_what_one_process_learns(runs: dict[int, Path], name: str, count: int) -> None:
    alone, weights = read(runs[1], name)
    assert len(alone["losses"]) >= 20
    for rank in range(count):
        found, same = read(runs[count], name, rank)
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert apart(weights, same) < 1e-5
        for each, wanted in zip(
            [*found["epochs"], found["metrics"]], [*alone["epochs"], alone["metrics"]], strict=True
        ):
            assert numbers(each) == pytest.approx(numbers(wanted), abs=1e-4)
