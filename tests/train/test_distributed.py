"""Several ranks: they do what one process does with the same batches, and what a killed rank leaves can be resumed."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from hill.cli.common import app
from hill.errors import ConfigError, HillError
from hill.io import LOCK
from hill.models.large_label import SampledLoss
from hill.models.layers import DistributedBatchNorm, all_gather, is_distributed
from hill.train.distributed import DistributedContext, current_context, init_distributed
from tests.conftest import ROOT, animals_taxonomy
from tests.train.ranks import (
    ALWAYS,
    DOCUMENTS,
    TRAIN,
    Job,
    apart,
    be_rank,
    classifier,
    learn,
    numbers,
    read,
    start,
    toy_data,
)

pytest.importorskip("accelerate")
pytest.importorskip("peft")
psutil = pytest.importorskip("psutil")

ADDED_UP = {"accumulate": 2, "head_start": "off", "clip": 0.1}
AS_IT_IS = {"strategy": "closure", "tune": "off", "calibrate": "off"}
"""Nothing is chosen on dev: where scores are nearly alike, rounding would choose."""
CASES = [
    Job("flat", "flat", train=ADDED_UP),
    Job("hill", "hill", {"contrast": 0.5}),
    Job("hgclr", "hgclr", {"contrast": 0.5, "keep": 0.35}),  # no token is near it: rounding decides nothing
    Job("softmax", "hill", {"loss": "softmax"}, {"head_start": "off", "freeze": 1}),
    Job("units", "hill", {"leaf_units": 2}, {"classifier_lr": 1e-3}),
    Job("names", "hill", {"name_weight": 3.0, "negatives": "others"}),
    Job("untied", "hill", {"contrast": 0.0, "loss": "conditional-softmax"}, {"head_start": "off"}, decode=AS_IT_IS),
    Job("sampled", "flat", {"sample": 3}, ADDED_UP, {"keep": 4}),
    Job("lora", "flat", train={"lora": 2, "freeze": 1, "encoder_lr": 1e-2}),
    Job("sampled-hill", "hill", {"sample": 3, "contrast": 0.5, "negatives": "others"}, decode={"keep": 4}),
]
EXACT = [
    Job("exact", "flat", {}, ADDED_UP, {"keep": 4}),
    Job("exact-hill", "hill", {"contrast": 0.5, "negatives": "others"}, decode={"keep": 4}),
]
DRAWS = 2_000
STOPPED = Job("stopped", "hill", {"contrast": 0.5}, ALWAYS, stop=13)
DROPPING = Job("dropping", "flat", {"dropout": 0.1}, ALWAYS | {"head_start": "off", "epochs": 2})


@pytest.fixture(scope="module")
def runs(still_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What 1, 2 and 4 ranks leave of all trainings, and what 1 and 4 make of one that 2 had begun."""
    found = {count: tmp_path_factory.mktemp(f"ranks{count}") for count in (2, 1, 4)}
    start(learn, 2, still_encoder, found[2], [*CASES, STOPPED])
    for count in (1, 4):
        shutil.copytree(found[2] / STOPPED.name, found[count] / STOPPED.name)
        resumed = replace(STOPPED, stop=0, resume=True)
        more = CASES[:3] if count == 4 else [*CASES, *EXACT]
        start(learn, count, still_encoder, found[count], [*more, resumed])
    return found


@pytest.mark.parametrize(("name", "count"), [(job.name, 2) for job in CASES] + [(job.name, 4) for job in CASES[:3]])
def test_ranks_learn_what_one_process_learns(runs: dict[int, Path], name: str, count: int) -> None:
    alone, weights = read(runs[1], name)
    for rank in range(count):
        found, same = read(runs[count], name, rank)
        assert len(found["losses"]) >= 12 and found["documents"] == alone["documents"]
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert apart(weights, same) < 1e-5
        for each, wanted in zip(
            [*found["epochs"], found["metrics"]], [*alone["epochs"], alone["metrics"]], strict=True
        ):
            assert numbers(each) == pytest.approx(numbers(wanted), abs=1e-4)  # those of scores differ by rounding


@pytest.mark.parametrize("suffix", ["", "-hill"])
def test_a_loss_over_a_sample_of_all_labels_is_exact_on_every_number_of_ranks(
    runs: dict[int, Path], suffix: str
) -> None:
    wanted, weights = read(runs[1], f"exact{suffix}")
    for count in (1, 2):
        found, same = read(runs[count], f"sampled{suffix}")
        assert found["losses"] == pytest.approx(wanted["losses"], abs=1e-5)
        assert apart(weights, same) < 1e-5
        assert numbers(found["metrics"]) == pytest.approx(numbers(wanted["metrics"]), abs=1e-4)


def draw_samples(rank: int, count: int, port: int, folder: Path) -> None:
    """The loss of this rank's documents over its own sample of the labels, and the mean over many samples."""
    be_rank(rank, count, port)
    torch.manual_seed(rank)
    features, lists, head = made_wide()
    documents = np.arange(len(lists))
    mine = current_context().shard(documents)
    loss = animal_loss()
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
    plain = loss.draw
    loss.draw = lambda lists: drawn.append(plain(lists)) or drawn[-1]  # type: ignore[assignment, func-returns-value]
    with current_context().global_batch(documents):
        found = loss(features[mine], head, lists[mine])
        found.backward()
        with torch.no_grad():
            many = torch.stack([loss(features[mine], head, lists[mine]) for _ in range(DRAWS)])
    rows, weight = drawn[0]
    grads = {"grad.weight": head.weight.grad, "grad.bias": head.bias.grad}
    save_file({"rows": rows, "weight": weight, "loss": found.detach(), "many": many, **grads}, folder / f"{rank}.st")  # type: ignore[dict-item]
    current_context().close()


def animal_loss() -> SampledLoss:
    taxonomy = animals_taxonomy()
    child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
    return SampledLoss(child, parent, torch.from_numpy(taxonomy.roots), len(taxonomy), 2)


def made_wide() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]:
    """Features and label lists of 5 documents, and a head that reads them."""
    draw = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(3, 7)
    for weight in head.parameters():
        weight.data = torch.randn(weight.shape, generator=draw)
    lists = torch.tensor([[0, 1, 3], [0, 2, 7], [6, 7, 7], [0, 1, 4], [7, 7, 7]])
    return torch.randn(5, 3, generator=draw), lists, head


def test_each_rank_draws_its_own_sample_and_the_loss_is_that_of_all_documents(tmp_path: Path) -> None:
    start(draw_samples, 2, tmp_path)
    ranks = [load_file(tmp_path / f"{rank}.st") for rank in range(2)]
    features, lists, head = made_wide()
    targets = torch.zeros(5, 8).scatter_(1, lists, 1.0)[:, :7]
    logits, losses = head(features), []
    for each, documents in zip(ranks, ([0, 1, 2], [3, 4]), strict=True):
        for document in documents:
            for label, weight in zip(each["rows"].tolist(), each["weight"].tolist(), strict=True):
                if label < 7 and weight:
                    losses.append(weight * torch.nn.functional.softplus(logits[document, label]))
            losses += [-logits[document, label] for label in lists[document].tolist() if label < 7]
    wanted = sum(losses, start=torch.zeros(())) / (5 * 7)
    wanted.backward()
    exact = torch.nn.functional.binary_cross_entropy_with_logits(head(features), targets)
    for each in ranks:
        torch.testing.assert_close(each["loss"], wanted.detach())
        assert abs(each["many"].mean() - exact) < 4 * each["many"].std() / DRAWS**0.5
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(torch.stack([each[f"grad.{name}"] for each in ranks]).mean(dim=0), parameter.grad)
    assert not torch.equal(ranks[0]["rows"][-2:], ranks[1]["rows"][-2:])


def test_a_training_continues_on_another_number_of_ranks(runs: dict[int, Path]) -> None:
    whole_run, weights = read(runs[1], "hill")
    for count in (1, 4):
        found, resumed = read(runs[count], STOPPED.name)
        assert found["losses"] == pytest.approx(whole_run["losses"][STOPPED.stop :], abs=1e-5)
        assert apart(weights, resumed) < 1e-5
        log = [json.loads(line) for line in (runs[count] / STOPPED.name / "log.jsonl").read_text().splitlines()]
        assert {"resumed": STOPPED.stop, "ranks": count}.items() <= next(e for e in log if "resumed" in e).items()


def test_one_rank_writes(runs: dict[int, Path]) -> None:
    for count in (1, 2, 4):
        lines = [json.loads(line) for line in (runs[count] / "hill" / "log.jsonl").read_text().splitlines()]
        kinds = [line.get("step", "stopped" if "stopped" in line else "epoch") for line in lines]
        assert kinds == ["epoch", 10, "epoch", 20, "epoch", "stopped"]
        assert len(list((runs[count] / "stopped" / "checkpoints").iterdir())) == 2


def test_ranks_resume_to_the_bit(tiny_encoder: Path, tmp_path: Path) -> None:
    """With dropout: each rank draws its own, and draws it again."""
    broken = replace(DROPPING, name="broken")
    start(learn, 2, tiny_encoder, tmp_path, [DROPPING, replace(broken, stop=5), replace(broken, resume=True)])
    whole_run, weights = read(tmp_path, DROPPING.name)
    found, resumed = read(tmp_path, broken.name)
    assert found["losses"] == whole_run["losses"][5:]
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def normalise(rank: int, count: int, port: int, folder: Path) -> None:
    """A step of BatchNorm and of a product over rows, of which this rank has its part."""
    be_rank(rank, count, port)
    rows, weight = made_rows()
    documents = np.arange(len(rows))
    norm = DistributedBatchNorm(3)
    part = rows[current_context().shard(documents)].requires_grad_()
    with current_context().global_batch(documents):
        assert is_distributed()
        found = all_gather(norm(part))
    assert not is_distributed()
    (found @ weight).square().mean().backward()
    state = {name: value for name, value in norm.state_dict().items() if name.startswith("running")}
    grads = {"rows": part.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    save_file({"found": found.detach(), **state, **{f"grad.{k}": v for k, v in grads.items()}}, folder / f"{rank}.st")  # type: ignore[dict-item]
    current_context().close()


def made_rows() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(7, 3, generator=draw) * 3 + 1, torch.randn(3, 2, generator=draw)


def test_batch_norm_sees_the_rows_of_all_ranks(tmp_path: Path) -> None:
    start(normalise, 3, tmp_path)
    rows, weight = made_rows()
    norm = torch.nn.BatchNorm1d(3)
    wanted = norm(rows.requires_grad_())
    (wanted @ weight).square().mean().backward()
    ranks = [load_file(tmp_path / f"{rank}.st") for rank in range(3)]
    assert [len(each["grad.rows"]) for each in ranks] == [3, 2, 2]
    for each in ranks:
        torch.testing.assert_close(each["found"], wanted.detach())
        torch.testing.assert_close(each["running_mean"], norm.running_mean)
        torch.testing.assert_close(each["running_var"], norm.running_var)
    # what a rank passes back is its part times the number of ranks; the mean over ranks is the gradient
    torch.testing.assert_close(torch.cat([each["grad.rows"] for each in ranks]) / 3, rows.grad)
    for name, parameter in norm.named_parameters():
        torch.testing.assert_close(torch.stack([each[f"grad.{name}"] for each in ranks]).mean(dim=0), parameter.grad)


def disagree(rank: int, count: int, port: int, encoder: Path, folder: Path) -> None:
    """Rank 1 has a document less."""
    be_rank(rank, count, port)
    model = classifier(CASES[1], encoder)
    try:
        list(model.training(toy_data(DOCUMENTS - rank), folder / "out"))
    except HillError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    os._exit(0)


def test_a_rank_with_other_data_ends_the_job(still_encoder: Path, tmp_path: Path) -> None:
    start(disagree, 2, still_encoder, tmp_path)
    assert "rank 1 has number of documents of train = 49, but rank 0 has 50" in (tmp_path / "1.txt").read_text()
    lost = (tmp_path / "0.txt").read_text()
    assert lost.startswith("rank 0 of 2 lost another rank (") and "start the same command with --resume" in lost


def test_a_killed_rank_ends_the_job_and_the_last_checkpoint_resumes(still_encoder: Path, tmp_path: Path) -> None:
    for name, documents in toy_data().items():
        lines = [{"text": text, "labels": ["p"]} for text in documents.texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "taxonomy.json").write_text(json.dumps(animals_taxonomy().to_dict()))
    out, sets = tmp_path / "out", {f"train.{key}": value for key, value in (TRAIN | ALWAYS | {"epochs": 20}).items()}
    command = [
        "train",
        str(tmp_path),
        "--taxonomy",
        str(tmp_path / "taxonomy.json"),
        "--out",
        str(out),
        "--model",
        "flat",
    ]
    command += [
        "--encoder",
        str(still_encoder),
        *(word for key, value in sets.items() for word in ("--set", f"{key}={value}")),
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "hill"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    job = subprocess.Popen([*launcher, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
    while not list(out.glob("checkpoints/state-*")):
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.02)
    ranks = [each for each in psutil.Process(job.pid).children() if each.environ().get("RANK") == "1"]
    ranks[0].kill()
    errors = job.communicate(timeout=100)[1]
    assert job.returncode not in (0, None)
    assert "hill: rank 0 of 2 " in errors and "start the same command with --resume" in errors
    assert not (out / "config.json").exists()
    result = CliRunner().invoke(app, [*command, "--resume"])
    assert result.exit_code == 0, result.output
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["ranks"] for line in log if "resumed" in line] == [1]
    assert (out / "config.json").exists() and not (out / "checkpoints").exists()


def test_a_folder_locked_by_the_main_rank_is_no_error_on_other_ranks(
    still_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (tmp_path / "taxonomy.json").write_text(json.dumps(animals_taxonomy().to_dict()))
    out.mkdir()
    with (out / LOCK).open("w") as lock:

        def init_late(device: str) -> DistributedContext:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return DistributedContext(1, 2)

        def read_nothing(*_: object) -> None:
            raise HillError("this rank goes on")

        monkeypatch.setattr("hill.train.distributed.init_distributed", init_late)
        monkeypatch.setattr("hill.data.read_data", read_nothing)
        words = ["train", "nothing", "--taxonomy", str(tmp_path / "taxonomy.json"), "--out", str(out)]
        result = CliRunner().invoke(app, [*words, "--model", "flat", "--encoder", str(still_encoder)])
    assert str(result.exception) == "this rank goes on"


def test_a_single_process_shares_nothing() -> None:
    context = init_distributed()
    assert (context.world_size, context.is_main, context.shard(np.arange(3)).tolist()) == (1, True, [0, 1, 2])
    rows = torch.ones(2, 2)
    assert all_gather(rows) is rows
    assert context.broadcast_object(rows) is rows
    context.close()


def test_shards_partition_a_batch_and_small_batches_are_not_split() -> None:
    contexts = [DistributedContext(rank, 4) for rank in range(4)]
    assert [context.shard(np.arange(7)).tolist() for context in contexts] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [context.shard(np.arange(3)).tolist() for context in contexts] == [[0, 1, 2]] * 4
    with contexts[0].global_batch(np.arange(3)):
        assert not is_distributed()


def test_unsupported_features_of_accelerate_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(
        ConfigError, match=r"accelerate is configured to use DEEPSPEED, which training does not support"
    ):
        init_distributed("cpu")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match=r"needs accelerate, .*pip install 'accelerate>="):
        init_distributed("cpu")
    assert current_context().world_size == 1


def test_only_lost_ranks_are_reported_as_lost() -> None:
    with pytest.raises(RuntimeError, match="shapes"), DistributedContext(1, 2).report_lost_rank():
        raise RuntimeError("shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="Connection"), DistributedContext().report_lost_rank():
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(HillError, match="rank 1 of 2 lost another rank"), DistributedContext(1, 2).report_lost_rank():
        raise RuntimeError("Connection closed by peer")
