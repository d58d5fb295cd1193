"""Sharded text encoders: ranks that hold a part each learn what one process learns, and leave what one would leave."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from hill.cli import app
from hill.errors import ConfigError
from hill.taxonomy.nested import taxonomy_document
from hill.train import Session, TrainConfig
from hill.train.launcher import Sharding, read_sharding
from hill.train.ranks import Ranks
from hill.train.shards import _layers, with_room, without_weights
from tests.conftest import ROOT, animals_taxonomy, toy_documents
from tests.made import make_model
from tests.ranks import ALWAYS, TRAIN, Job, apart, learn, numbers, read, start

pytest.importorskip("accelerate")

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
KEPT = SHARDED | {"FSDP_RESHARD_AFTER_FORWARD": "false"}
CASES = [
    Job("flat", "flat", train={"accumulate": 2, "head_start": "off", "clip": 0.1, "epochs": 5}),
    Job("hill", "hill", {"contrast": 0.5}),
    Job("hgclr", "hgclr", {"contrast": 0.5, "keep": 0.35}),
    Job("stages", "hill", {"negatives": "weighted"}, {"stages": "two", "contrast_epochs": 1}),
    Job("frozen", "flat", {}, {"head_start": "off", "freeze": 1, "recompute": True}),
    Job("poisoned", "flat", {}, {"head_start": "off", "skip_nonfinite": True}, poisoned=5),
]
STOPPED = Job("stopped", "hill", {"contrast": 0.5}, ALWAYS, stop=13)
TURNED = replace(STOPPED, name="turned")
BF16 = Job("bf16", "flat", {}, {"precision": "bf16", "head_start": "off", "epochs": 2})


@pytest.fixture(scope="module")
def runs(still_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one process, and 2 and 4 ranks with shards, leave of all trainings, and of what the others had begun."""
    found = {count: tmp_path_factory.mktemp(f"ranks{count}") for count in (1, 2, 4)}
    start(learn, 1, still_encoder, found[1], [*CASES, BF16, TURNED])
    hand_on(found[1], found[2], TURNED.name)
    start(learn, 2, still_encoder, found[2], [*CASES, BF16, STOPPED, replace(TURNED, stop=0, resume=True)], SHARDED)
    for count in (1, 4):
        hand_on(found[2], found[count], STOPPED.name)
    resumed = replace(STOPPED, stop=0, resume=True)
    start(learn, 1, still_encoder, found[1], [resumed])
    start(learn, 4, still_encoder, found[4], [CASES[0], resumed], KEPT)
    return found


def hand_on(giver: Path, taker: Path, name: str) -> None:
    shutil.copytree(giver / name, taker / name)


@pytest.mark.parametrize(("name", "count"), [("flat", 4), *((job.name, 2) for job in CASES)])
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


def test_each_rank_holds_its_part(runs: dict[int, Path]) -> None:
    (text, means), rest = (read(runs[1], "flat")[0]["held"][part] for part in ("text", "rest"))
    assert means == 2 * text
    for count in (2, 4):
        parts = [read(runs[count], "flat", rank)[0]["held"] for rank in range(count)]
        assert all(part["rest"] == rest for part in parts)
        for place, total in enumerate((text, means)):
            shares = [part["text"][place] for part in parts]
            assert total <= sum(shares) < 1.1 * total  # what does not divide evenly is filled up
            assert max(shares) < 1.1 * total / count


def test_parts_that_a_model_calls_by_themselves_stay_whole(runs: dict[int, Path]) -> None:
    text, part = (read(runs[count], "hgclr")[0]["held"]["text"][0] for count in (1, 2))
    whole = 16 * (22 + 64 + 2 + 2)  # words, places, kinds, and the norm's two rows
    assert part == whole + (text - whole) // 2


def test_a_step_that_one_rank_cannot_take_is_taken_by_none(runs: dict[int, Path]) -> None:
    skipped = [read(runs[1], "poisoned")[0]["skipped"]]
    skipped += [read(runs[2], "poisoned", rank)[0]["skipped"] for rank in (0, 1)]
    assert skipped == [1, 1, 1]


def test_a_training_goes_on_with_and_without_shards(runs: dict[int, Path]) -> None:
    whole_run, weights = read(runs[1], "hill")
    for count, name in ((1, STOPPED.name), (4, STOPPED.name), (2, TURNED.name)):
        found, resumed = read(runs[count], name)
        assert found["losses"] == pytest.approx(whole_run["losses"][STOPPED.stop :], abs=1e-5)
        assert apart(weights, resumed) < 1e-5
        assert numbers(found["metrics"]) == pytest.approx(numbers(whole_run["metrics"]), abs=1e-4)


def test_checkpoints_are_whole(runs: dict[int, Path]) -> None:
    name = f"checkpoints/state-{STOPPED.stop:08d}-0001"
    alone, shards = runs[1] / TURNED.name / name, runs[2] / STOPPED.name / name
    assert sorted(file.name for file in alone.iterdir()) == sorted(file.name for file in shards.iterdir())
    for file in ("weights.safetensors", "optimiser.safetensors", "best.safetensors"):
        assert apart(load_file(alone / file), load_file(shards / file)) < 1e-5


def test_matrices_in_bf16_leave_weights_and_means_in_fp32(runs: dict[int, Path]) -> None:
    """`held` sees to the latter."""
    alone, found = (read(runs[count], BF16.name)[0]["losses"] for count in (1, 2))
    exact = read(runs[1], "flat")[0]["losses"]
    assert found == pytest.approx(alone, abs=5e-3)
    assert found[0] != pytest.approx(exact[0], abs=1e-7)


CONFIG = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "distributed.md").read_text(), re.DOTALL)


def test_what_the_launcher_starts_with_the_documented_configuration(still_encoder: Path, tmp_path: Path) -> None:
    """It leaves the model that one process leaves, and what reads one reads it."""
    for name, count in (("train", 30), ("dev", 12)):
        lines = [{"text": text, "labels": labels} for text, labels in zip(*toy_documents(count, 3), strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "taxonomy.json").write_text(json.dumps(taxonomy_document(animals_taxonomy())))
    assert CONFIG
    (tmp_path / "fsdp.yaml").write_text(CONFIG[1])
    sets = {f"train.{key}": value for key, value in (TRAIN | {"epochs": 1, "head_start": "off"}).items()}
    words = ["train", str(tmp_path), "--taxonomy", str(tmp_path / "taxonomy.json"), "--model", "flat"]
    words += ["--encoder", str(still_encoder), "--set", "model.dropout=0"]
    words += [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "fsdp.yaml")]
    command = [*launcher, "--num_processes", "2", "-m", "hill", *words, "--out", str(tmp_path / "launched")]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert CliRunner().invoke(app, [*words, "--out", str(tmp_path / "alone")]).exit_code == 0
    launched, alone = tmp_path / "launched", tmp_path / "alone"
    assert sorted(os.listdir(launched)) == sorted(os.listdir(alone))
    assert apart(load_file(launched / "model.safetensors"), load_file(alone / "model.safetensors")) < 1e-5
    found = CliRunner().invoke(app, ["predict", str(launched), "leaf root bark"])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({}, Sharding()),
        ({"FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": "FULL_SHARD", "FSDP_RESHARD_AFTER_FORWARD": "x"}, Sharding()),
        ({"FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"}, Sharding(keeps=True)),
        ({"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}, Sharding(keeps=True)),
        ({"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, Sharding(layers=())),
        ({"FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer, Other"}, Sharding(layers=("BertLayer", "Other"))),
        ({"FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE", "FSDP_USE_ORIG_PARAMS": "true"}, Sharding()),
    ],
)
def test_options_that_are_followed(told: dict[str, str], wanted: Sharding, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_sharding() is None
    for name, value in (SHARDED | {"FSDP_VERSION": "1"} | told).items():
        monkeypatch.setenv(name, value)
    assert read_sharding() == wanted


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params = true, .* expected false"),
        ("FSDP_SHARDING_STRATEGY", "HYBRID_SHARD", "hybrid_shard, .* expected full_shard or shard_grad_op"),
        ("FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP", "size_based_wrap, .* expected transformer_based_wrap or no_wrap"),
        ("FSDP_BACKWARD_PREFETCH", "NO_PREFETCH", "fsdp_backward_prefetch = no_prefetch"),
        ("FSDP_FORWARD_PREFETCH", "true", "fsdp_forward_prefetch = true"),
        ("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT", "sharded_state_dict, .* expected full_state_dict"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", r"set train\.recompute=true instead"),
        ("FSDP_IGNORED_MODULES", "embeddings", "embeddings, .* leave it out"),
        ("FSDP_VERSION", "3", "fsdp_version = 3, .* expected 1 or 2"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "to use DEEPSPEED"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", "to use PARALLELISM_CONFIG"),
    ],
)
def test_options_that_are_refused(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        read_sharding()


def test_what_is_gathered_at_a_time(tiny_encoder: Path) -> None:
    encoder = transformers.AutoModel.from_pretrained(tiny_encoder)
    blocks = list(encoder.encoder.layer)
    assert _layers(encoder, None) == blocks == _layers(encoder, ("BertLayer",))[::-1]
    assert _layers(encoder, ("BertEncoder", "BertLayer"))[-1] is encoder.encoder
    assert _layers(encoder, ()) == []
    with pytest.raises(ConfigError, match=r"the encoder has no T5Block; expected some of .*BertLayer"):
        _layers(encoder, ("BertLayer", "T5Block"))


def test_a_text_encoder_without_layers_is_not_shared(tiny_encoder: Path) -> None:
    model = make_model("textrcnn", {}, tiny_encoder).model
    session = Session(model, TrainConfig(device="cpu"), torch.device("cpu"), ranks=Ranks(sharding=Sharding()))
    with pytest.raises(ConfigError, match=r"use FSDP, but the text encoder is a RCNN, .* set model\.text=transformer"):
        session.shard()


def test_a_module_without_weights_gets_room_for_them() -> None:
    """Weights that are one stay one, frozen ones frozen, and buffers what they are."""
    module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2)})
    module["b"].weight = module["a"].weight
    module["b"].bias.requires_grad_(False)
    module["norm"].running_mean.fill_(3.0)
    bare = without_weights(module)
    assert all(weight.is_meta for weight in bare.parameters()) and not module["a"].weight.is_meta
    whole = with_room(bare, torch.device("cpu"))
    assert not any(weight.is_meta for weight in whole.parameters())
    assert whole["norm"].running_mean.tolist() == [3.0, 3.0] and not whole["b"].bias.requires_grad
    whole.load_state_dict(module.state_dict())
    assert whole["a"].weight.data_ptr() == whole["b"].weight.data_ptr()
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())
