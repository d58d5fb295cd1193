"""How fast a model trains and predicts on this device, measured on a few batches before training."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch

from hill.train.trainer import Session, Split, StepRunner

ROUNDS = 4
"""Batches that are timed at most; the fastest counts."""


@dataclass(frozen=True)
class Speed:
    """Seconds per document."""

    train: float
    """A training step with all layers of the encoder."""
    predict: float
    """A forward pass without gradients, and the scores of all labels."""
    encode: float
    """A forward pass of the encoder alone."""
    head: float
    """A training step on vectors of a frozen encoder."""


def measure_speed(session: Session, sample: Split, seconds: float) -> Speed:
    """Time steps and forward passes on documents of a sample, with a copy of the model, for about this long.

    The session and the random state are not changed.
    """
    with torch.random.fork_rng([session.device] if session.device.type == "cuda" else []):
        copied = Session(deepcopy(session.model), replace(session.config, skip_nonfinite=False), session.device)
        model, inference = copied.model, copied.inference
        order = np.random.default_rng(0).permutation(len(sample))
        size = session.config.batch_size  # a step has costs that do not depend on the documents
        batches = [order[start : start + size] for start in range(0, len(sample), size)][:ROUNDS]

        def fastest(call: Callable[[int], object]) -> float:
            """The time of the fastest batch per document; the first batch is a warm-up."""
            times: list[float] = []
            while len(times) < len(batches) and (len(times) < 2 or sum(times) < seconds / 3):
                start = time.perf_counter()
                call(len(times))
                if session.device.type == "cuda":
                    torch.cuda.synchronize()
                times.append((time.perf_counter() - start) / len(batches[len(times)]))
            return min(times)

        def train_on(split: Split) -> float:
            model.train()
            runner = StepRunner(copied, split)
            return fastest(lambda i: runner.step([batches[i]]))

        if model.text.pretrained:
            model.text.requires_grad_(True)
        train = head = train_on(sample)
        predict = encode = fastest(lambda i: list(inference.scores(sample.take(batches[i]).tokens)))
        if model.vector_only and model.text.pretrained:
            encode = fastest(lambda i: list(inference.vectors(sample.take(batches[i]).tokens)))
            model.text.requires_grad_(False)
            vectors = torch.zeros(len(sample), model.text.width, device=session.device)
            head = train_on(replace(sample, vectors=vectors))
    return Speed(train, predict, encode, head)
