"""Whether memory or open files grow over many trainings: python -m tests.leaks 1000."""

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hill.classifier import HillClassifier
from tests.conftest import animals_taxonomy, toy_documents
from tests.fixtures.make import MODELS, make_encoder

KINDS = ("linear", "hill")


@dataclass(frozen=True)
class Held:
    """What this process holds after some cycles: megabytes of memory, open files, threads."""

    cycles: int
    megabytes: float
    files: int
    threads: int


def measure(cycles: int, every: int) -> Iterator[Held]:
    """Train, predict, save, load and explain again and again, and say every so often what is held."""
    with TemporaryDirectory() as scratch:
        encoder, folder = Path(scratch) / "encoder", Path(scratch) / "model"
        make_encoder(encoder)
        for cycle in range(1, cycles + 1):
            run_cycle(KINDS[cycle % len(KINDS)], encoder, folder, seed=cycle)
            if cycle % every == 0:
                yield hold(cycle)


def run_cycle(name: str, encoder: Path, folder: Path, seed: int) -> None:
    """One life of a classifier."""
    model = {} if name == "linear" else {"encoder": str(encoder), "height": 2}
    settings = {"model": model, "train": {"epochs": 1, "batch_size": 8, "seed": seed, "device": "cpu"}}
    texts, labels = toy_documents(24, seed)
    HillClassifier(animals_taxonomy(), name, settings, preset=None).fit(texts, labels).save(folder)
    loaded = HillClassifier.load(folder, device="cpu")
    loaded.predict(texts)
    loaded.explain(texts[0], method="gradient" if name == "hill" else "integrated").html()
    HillClassifier.load(MODELS / "0.1.0" / "flat", device="cpu").predict_proba(texts)


def hold(cycles: int) -> Held:
    """What this process holds now, as Linux tells it; mapped files are not counted, which the system drops at will."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = sum(int(status[key].split()[0]) for key in ("RssAnon", "VmSwap"))
    return Held(cycles, kilobytes / 1024, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))


if __name__ == "__main__":
    count = int(sys.argv[1])
    for held in measure(count, max(1, count // 20)):
        sys.stdout.write(
            f"{held.cycles:6} cycles  {held.megabytes:8.1f} MiB  {held.files} files  {held.threads} threads\n"
        )
        sys.stdout.flush()
