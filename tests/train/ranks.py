"""Trainings on several ranks for tests: processes on the CPU that leave losses, metrics and weights in a folder."""

import itertools
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import hill.models.hgclr
from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.models import MODELS
from hill.models.large_label import SampledLoss
from hill.train import Epoch, Step
from hill.train.distributed import current_context, init_distributed
from tests import forks
from tests.conftest import animals_taxonomy, toy_documents

PORTS = itertools.count(20_000 + os.getpid() % 10_000)
"""Ports that the system gives to nobody who asks for any."""
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
    decode: dict[str, Any] = field(default_factory=dict)
    stop: int = 0
    resume: bool = False


def classifier(job: Job, encoder: Path) -> HillClassifier:
    known = {name: 0.0 for name in ("dropout", "readout_dropout") if hasattr(MODELS[job.model].Config, name)}
    height = {"height": 2} if job.model == "hill" else {}
    settings = {"model": {"encoder": str(encoder), **height, **known, **job.settings}, "train": TRAIN | job.train}
    return HillClassifier(animals_taxonomy(), job.model, {**settings, "decode": job.decode}, preset=None)


def toy_data(documents: int = DOCUMENTS) -> dict[str, Any]:
    sizes = (("train", documents, 1), ("dev", 23, 2))
    return {name: label_documents(*toy_documents(n, seed), animals_taxonomy()) for name, n, seed in sizes}


def do(job: Job, encoder: Path, folder: Path) -> None:
    """Train, and leave losses, metrics and the weights after the last step."""
    model, rank = classifier(job, encoder), current_context().rank
    found: dict[str, Any] = {"losses": [], "documents": [], "epochs": []}
    weights: dict[str, torch.Tensor] = {}
    for report in model.training(toy_data(), folder / job.name, job.resume):
        if isinstance(report, Step):
            found["losses"].append(report.loss.item())
            found["documents"].append(report.documents)
            if job.stop == report.step:
                break
        elif isinstance(report, Epoch):
            found["epochs"].append(report.metrics)
            weights = {name: value.clone() for name, value in model.stored.model.state_dict().items()}
    found["metrics"] = model.metrics
    save_file(weights, folder / f"{job.name}-{rank}.safetensors")
    (folder / f"{job.name}-{rank}.json").write_text(json.dumps(found))


def be_rank(rank: int, count: int, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    init_distributed("cpu")


def learn(
    rank: int, count: int, port: int, encoder: Path, folder: Path, jobs: list[Job], told: dict[str, str] | None = None
) -> None:
    """The trainings as this rank, told so by its launcher, sees them; Gumbel noise is off, as each draws its own."""
    os.environ.update(told or {})
    hill.models.hgclr.F.gumbel_softmax = lambda logits, tau, dim: (logits / tau).softmax(dim)  # type: ignore[attr-defined]
    if count > 1:
        be_rank(rank, count, port)
    SampledLoss.draw = draw_all  # type: ignore[method-assign]
    for job in jobs:
        do(job, encoder, folder)
    current_context().close()


def draw_all(self: SampledLoss, lists: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A draw of every label, with which a sampled loss is exact: those of the documents first, then the others."""
    known, labels = lists.flatten(), torch.arange(self.labels)
    times = (known[:, None] == torch.arange(self.labels + 1)).sum(dim=0)
    return torch.cat([known, labels]), torch.cat([(known < self.labels) / times[known], (times[labels] == 0).float()])


def start(program: Any, count: int, *arguments: Any) -> None:
    """Run a program as so many ranks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    port = next(port for port in PORTS if is_free(port))
    ranks = [forks.start(program, rank, count, port, *arguments) for rank in range(count)]
    for each in ranks:
        each.join(timeout=200)
    codes = [each.exitcode for each in ranks]
    for each in ranks:
        each.kill()
    assert codes == [0] * count


def is_free(port: int) -> bool:
    with socket.socket() as found:
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def read(folder: Path, name: str, rank: int = 0) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((folder / f"{name}-{rank}.json").read_text()), load_file(folder / f"{name}-{rank}.safetensors")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of weights that matter."""
    assert one.keys() == other.keys()
    named = [name for name in one if not name.endswith(UNMOVED)]
    return max((one[name].double() - other[name].double()).abs().max().item() for name in named)


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    flat = {f"{level['level']}.{key}": value for level in metrics["levels"] for key, value in level.items()}
    known = {key: value for key, value in metrics.items() if key not in ("levels", "split")}
    return known | flat
