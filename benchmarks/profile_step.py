"""Profile training steps (CUDA graphs) and prediction on a GPU: kernel times by name, and the kernels of a step.

Documents and encoders are those of `bench_step.py`. Run it as
`python benchmarks/profile_step.py --rows bert-base:hill:24 minilm:flat:128:predict [--out FOLDER]`.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_step import build, stars, synthetic
from torch.profiler import ProfilerActivity, profile

from hill.data.batches import training_order
from hill.train import Session, Split, TrainConfig
from hill.train.trainer import StepRunner, make_steps
from hill.types import IntArray

REPEATS, DOCUMENTS = 10, 4_000


def kernels(action: Callable[[], Any]) -> tuple[list[tuple[str, float, float]], float]:
    """Name, start and duration in µs of each kernel and copy, in order; and the µs from the first to the last."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        action()
        torch.cuda.synchronize()
    events = [
        e for e in profiler.profiler.kineto_results.events() if e.device_type() == torch._C._autograd.DeviceType.CUDA
    ]
    found = sorted((e.start_ns() / 1e3, e.duration_ns() / 1e3, e.name()) for e in events)
    return [(name, start, spent) for start, spent, name in found], found[-1][0] + found[-1][1] - found[0][0]


def predict(session: Session, data: Split) -> None:
    """Score all documents."""
    for _ in session.inference.scores(data.tokens):
        pass


def repeat(steps: StepRunner, documents: IntArray) -> None:
    """Take the same step several times."""
    for _ in range(REPEATS):
        steps.step([documents])


def table(found: list[tuple[str, float, float]], wall: float, repeats: int) -> str:
    """Kernels by name, the slowest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, _, spent in found:
        sums[name][0] += spent
        sums[name][1] += 1
    total = sum(spent for _, _, spent in found)
    lines = [f"kernels {total / repeats:.1f} us, wall {wall / repeats:.1f} us, {len(found) / repeats:.0f} launches"]
    for name, (spent, count) in sorted(sums.items(), key=lambda item: -item[1][0]):
        lines.append(f"{spent / repeats:10.1f} us {count / repeats:7.1f} x  {name[:150]}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write a table per row, and for training steps the kernels of one step in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", default=["bert-base:hill:24"], help="encoder:model:batch[:predict]")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    taxonomy = stars()
    data = synthetic(DOCUMENTS, taxonomy, 30_000)
    for row in arguments.rows:
        encoder, name, batch, mode = (*row.split(":"), "train")[:4]
        config = TrainConfig(batch_size=int(batch))
        session = Session(build(name, encoder, taxonomy, {}), config, torch.device("cuda"))
        if mode == "predict":
            predict(session, data)
            text = table(*kernels(partial(predict, session, data)), 1)
        else:
            steps = make_steps(session, data)
            session.model.train()
            documents = training_order(len(data), int(batch), 0, 0)[0]
            for _ in range(4):
                steps.step([documents])
            torch.cuda.synchronize()
            found, wall = kernels(partial(repeat, steps, documents))
            text = table(found, wall, REPEATS)
            first = found[: len(found) // REPEATS]
            text += "\nin order:\n" + "".join(
                f"{spent:8.1f} {place:8.0f}  {name[:130]}\n"
                for name, place, spent in ((name, start - first[0][1], spent) for name, start, spent in first)
            )
        (arguments.out / f"profile_{row.replace(':', '_')}.txt").write_text(text)
        print(row, text.split("\n")[0], flush=True)
        del session
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
