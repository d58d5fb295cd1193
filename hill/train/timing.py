"""How fast a model trains and predicts on this device, measured on a few batches before training."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch

from hill.train.trainer import Session, Split, StepRunner

BATCH = 16
ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """Seconds per document."""

    train: float
    """A training step with all layers of the encoder."""
    predict: float
    """A forward pass without gradients."""
    head: float
    """A training step on vectors of a frozen encoder."""


def measure_speed(session: Session, sample: Split) -> Speed:
    """Time steps and forward passes on documents of a sample, with a copy of the model; the session is not changed."""
    with torch.random.fork_rng([session.device] if session.device.type == "cuda" else []):
        copied = Session(deepcopy(session.model), replace(session.config, skip_nonfinite=False), session.device)
        copied.model.text.requires_grad_(True)
        copied.model.train()
        order = np.random.default_rng(0).permutation(len(sample))
        batches = [order[i : i + BATCH] for i in range(0, len(sample), BATCH)][: ROUNDS + 1]

        def train_on(split: Split) -> float:
            runner = StepRunner(copied, split)
            return _seconds(session, [lambda b=b: runner.step([b]) for b in batches]) / BATCH  # type: ignore[misc]

        train = train_on(sample)
        start = time.perf_counter()
        for _ in copied.inference.scores(sample.tokens):
            pass
        predict = (time.perf_counter() - start) / len(sample)
        head = train
        if copied.model.vector_only and copied.model.text.pretrained:
            copied.model.text.requires_grad_(False)
            vectors = torch.zeros(len(sample), copied.model.text.width, device=session.device)
            head = train_on(replace(sample, vectors=vectors))
    return Speed(train, predict, head)


def _seconds(session: Session, calls: list[Callable[[], object]]) -> float:
    """The fastest of some calls; the first is a warm-up if there are several."""
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        if session.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:] or times)
