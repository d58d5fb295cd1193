"""Several ranks: they do what one process does with the same batches, and what a killed rank leaves can be resumed."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import hill.nn.keep
from hill.classifier import HillClassifier
from hill.cli import app
from hill.data.documents import label_documents
from hill.disk import LOCK
from hill.errors import ConfigError, HillError
from hill.models import MODELS
from hill.nn.across import is_shared, whole
from hill.nn.structure import RowNorm
from hill.taxonomy.nested import taxonomy_document
from hill.train import Epoch, Step
from hill.train.ranks import Ranks, join, joined
from tests.conftest import ROOT, animals_taxonomy, toy_documents

pytest.importorskip("accelerate")
psutil = pytest.importorskip("psutil")

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.test_distributed", "accelerate", "torch._dynamo", "transformers.models.bert.modeling_bert"]
)
TRAIN = {"batch_size": 7, "encoder_lr": 1e-3, "lr": 1e-3, "device": "cpu", "epochs": 3}
ALWAYS = {"checkpoint_seconds": 0.0}
DOCUMENTS = 50
"""An epoch is 7 batches of 7, of which 2 ranks take 4 and 3, and 4 ranks 2, 2, 2 and 1; and one of 1, for all ranks."""
UNMOVED = ("structure.levels.0.linear.0.bias", "structure.levels.0.linear.1.bias", "running_mean")
"""A bias before BatchNorm changes nothing but the running mean: its gradient is rounding, which Adam magnifies."""


@dataclass(frozen=True)
class Job:
    """A training, perhaps one that stops early or goes on with what is in its folder."""

    name: str
    model: str = "hill"
    settings: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    stop: int = 0
    resume: bool = False


CASES = [
    Job("flat", "flat", train={"accumulate": 2, "head_start": "off", "clip": 0.1}),
    Job("hill", "hill", {"contrast": 0.5}),
    Job("hgclr", "hgclr", {"contrast": 0.5, "keep": 0.35}),  # no token is near it: rounding decides nothing
    Job("weighted", "hill", {"negatives": "weighted"}, {"stages": "two", "contrast_epochs": 1}),
    Job("alike", "hill", {"positives": "alike", "loss": "softmax"}, {"head_start": "off", "freeze": 1}),
    Job("untied", "hill", {"contrast": 0.0, "loss": "conditional-softmax"}, {"head_start": "off"}),
]
STOPPED = Job("stopped", "hill", {"contrast": 0.5}, ALWAYS, stop=13)
DROPPING = Job("dropping", "flat", {"dropout": 0.1}, ALWAYS | {"head_start": "off", "epochs": 2})


def classifier(job: Job, encoder: Path) -> HillClassifier:
    known = {name: 0.0 for name in ("dropout", "readout_dropout") if hasattr(MODELS[job.model].Config, name)}
    height = {"height": 2} if job.model == "hill" else {}
    settings = {"model": {"encoder": str(encoder), **height, **known, **job.settings}, "train": TRAIN | job.train}
    return HillClassifier(animals_taxonomy(), job.model, settings)


def toy_data(documents: int = DOCUMENTS) -> dict[str, Any]:
    sizes = (("train", documents, 1), ("dev", 23, 2))
    return {name: label_documents(*toy_documents(n, seed), animals_taxonomy()) for name, n, seed in sizes}


def do(job: Job, encoder: Path, folder: Path) -> None:
    """Train, and leave losses, metrics and the weights after the last step."""
    model, rank = classifier(job, encoder), joined().rank
    found: dict[str, Any] = {"losses": [], "documents": [], "epochs": []}
    for report in model.training(toy_data(), folder / job.name, job.resume):
        if isinstance(report, Step):
            found["losses"].append(report.loss.item())
            found["documents"].append(report.documents)
            weights = {name: value.clone() for name, value in model._running.model.state_dict().items()}
            if job.stop == report.step:
                break
        elif isinstance(report, Epoch):
            found["epochs"].append(report.metrics)
    found["metrics"] = model.metrics
    save_file(weights, folder / f"{job.name}-{rank}.safetensors")
    (folder / f"{job.name}-{rank}.json").write_text(json.dumps(found))


def be_rank(rank: int, count: int, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    join("cpu")


def learn(rank: int, count: int, port: int, encoder: Path, folder: Path, jobs: list[Job]) -> None:
    """The trainings as this rank sees them; Gumbel noise is off, as every rank draws its own."""
    hill.nn.keep.F.gumbel_softmax = lambda logits, tau, dim: (logits / tau).softmax(dim)  # type: ignore[attr-defined]
    if count > 1:
        be_rank(rank, count, port)
    for job in jobs:
        do(job, encoder, folder)
    joined().leave()


def start(program: Any, count: int, *arguments: Any) -> None:
    """Run a program as so many ranks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [FORKS.Process(target=program, args=(rank, count, port, *arguments)) for rank in range(count)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(timeout=200)
    codes = [each.exitcode for each in ranks]
    for each in ranks:
        each.kill()
    assert codes == [0] * count


def read(folder: Path, name: str, rank: int = 0) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((folder / f"{name}-{rank}.json").read_text()), load_file(folder / f"{name}-{rank}.safetensors")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of weights that matter."""
    assert one.keys() == other.keys()
    named = [name for name in one if not name.endswith(UNMOVED)]
    return max((one[name].double() - other[name].double()).abs().max().item() for name in named)


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("still") / "encoder"
    shutil.copytree(tiny_encoder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def runs(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What 1, 2 and 4 ranks leave of all trainings, and what 1 and 4 make of one that 2 had begun."""
    found = {count: tmp_path_factory.mktemp(f"ranks{count}") for count in (2, 1, 4)}
    start(learn, 2, encoder, found[2], [*CASES, STOPPED])
    for count in (1, 4):
        shutil.copytree(found[2] / STOPPED.name, found[count] / STOPPED.name)
        resumed = replace(STOPPED, stop=0, resume=True)
        start(learn, count, encoder, found[count], [*CASES[: 3 if count == 4 else None], resumed])
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


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    flat = {f"{level['level']}.{key}": value for level in metrics["levels"] for key, value in level.items()}
    known = {key: value for key, value in metrics.items() if key not in ("levels", "split")}
    return known | flat


def test_a_training_goes_on_with_other_ranks(runs: dict[int, Path]) -> None:
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
        assert [line.get("step", "epoch") for line in lines] == ["epoch", 10, "epoch", 20, "epoch"]
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
    norm = RowNorm(3)
    part = rows[joined().part(documents)].requires_grad_()
    with joined().sharing(documents):
        assert is_shared()
        found = whole(norm(part))
    assert not is_shared()
    (found @ weight).square().mean().backward()
    state = {name: value for name, value in norm.state_dict().items() if name.startswith("running")}
    grads = {"rows": part.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    save_file({"found": found.detach(), **state, **{f"grad.{k}": v for k, v in grads.items()}}, folder / f"{rank}.st")  # type: ignore[dict-item]
    joined().leave()


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


def test_a_rank_with_other_data_ends_the_job(encoder: Path, tmp_path: Path) -> None:
    start(disagree, 2, encoder, tmp_path)
    assert "rank 1 has documents = [49, 23], but rank 0 has [50, 23]" in (tmp_path / "1.txt").read_text()
    lost = (tmp_path / "0.txt").read_text()
    assert lost.startswith("rank 0 of 2 lost another rank (") and "start the same command with --resume" in lost


def test_a_killed_rank_ends_the_job_and_the_last_checkpoint_resumes(encoder: Path, tmp_path: Path) -> None:
    for name, documents in toy_data().items():
        lines = [{"text": text, "labels": ["p"]} for text in documents.texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "taxonomy.json").write_text(json.dumps(taxonomy_document(animals_taxonomy())))
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
        str(encoder),
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


def test_the_folder_that_the_main_rank_has_claimed_is_no_error_of_another(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (tmp_path / "taxonomy.json").write_text(json.dumps(taxonomy_document(animals_taxonomy())))
    out.mkdir()
    with (out / LOCK).open("w") as lock:

        def join_late(device: str) -> Ranks:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return Ranks(1, 2)

        def read_nothing(*_: object) -> None:
            raise HillError("this rank goes on")

        monkeypatch.setattr("hill.train.ranks.join", join_late)
        monkeypatch.setattr("hill.data.read_data", read_nothing)
        words = ["train", "nothing", "--taxonomy", str(tmp_path / "taxonomy.json"), "--out", str(out)]
        result = CliRunner().invoke(app, [*words, "--model", "flat", "--encoder", str(encoder)])
    assert str(result.exception) == "this rank goes on"


def test_alone_nothing_is_shared() -> None:
    ranks = join()
    assert (ranks.count, ranks.is_main, ranks.part(np.arange(3)).tolist()) == (1, True, [0, 1, 2])
    rows = torch.ones(2, 2)
    assert whole(rows) is rows and ranks.whole(rows, np.arange(2)) is rows and ranks.from_main(rows) is rows
    ranks.leave()


def test_parts_are_all_documents_once_and_small_batches_are_for_all() -> None:
    ranks = [Ranks(rank, 4) for rank in range(4)]
    assert [each.part(np.arange(7)).tolist() for each in ranks] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [each.part(np.arange(3)).tolist() for each in ranks] == [[0, 1, 2]] * 4
    with ranks[0].sharing(np.arange(3)):
        assert not is_shared()


def test_what_launchers_ask_for_and_we_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"accelerate is configured to use FSDP, .* set train\.recompute=true"):
        join("cpu")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match=r"needs accelerate, .*pip install 'hill-htc\[distributed\]'"):
        join("cpu")
    assert joined().count == 1


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), Ranks(1, 2).watching():
        raise RuntimeError("shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="Connection"), Ranks().watching():
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(HillError, match="rank 1 of 2 lost another rank"), Ranks(1, 2).watching():
        raise RuntimeError("Connection closed by peer")
