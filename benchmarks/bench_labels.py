"""Train and predict with flat and HILL on a CPU with 100 to 100,000 labels: memory and time per number of labels.

Run it as `python benchmarks/bench_labels.py [--labels 100 1000 10000 100000] [--out FILE]`. The encoder is a small
transformer with random weights, so structure, head and loss dominate. Every row runs in its own process with one
thread; times are processor times, which depend less on other jobs. The allocator keeps freed memory: otherwise tensors
of more than 32 MiB are returned and allocated again each time, which takes longer than to fill them.
"""

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hill.data import Documents
from hill.data.batches import batch_labels
from hill.data.documents import label_documents
from hill.encoders import Transformer
from hill.models import MODELS
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch

SIZES = [100, 1_000, 10_000, 100_000]
BRANCHES = 10
BATCH = 32
TOKENS = 16
BEST = 100
REPEATS = 3
SETTINGS: dict[str, dict[str, Any]] = {"flat": {}, "hill": {"height": 2, "method": "refined", "hidden": 64}}
SAMPLE = 4_096
COLUMNS = {
    "model": "model",
    "loss": "loss",
    "labels": "labels",
    "build_seconds": "build s",
    "mib": "MiB beyond the encoder",
    "step_ms": "ms a step",
    "ask_ms": "ms a document asked",
}
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
"""glibc reads these; other allocators do not."""
MEASURED = ("mib", "step_ms", "ask_ms")


def regular_taxonomy(labels: int) -> Taxonomy:
    """A taxonomy of ten roots and ten children per label, up to this number of labels."""
    return Taxonomy(
        Label(f"l{i}", f"label {i}", (f"l{i // BRANCHES - 1}",) if i >= BRANCHES else ()) for i in range(labels)
    )


def peak_mib() -> float:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def random_documents(taxonomy: Taxonomy) -> Documents:
    """A batch of documents, each with the path of one label."""
    rows = np.random.default_rng(0).integers(0, len(taxonomy), BATCH)
    return label_documents(["a text"] * BATCH, [[taxonomy[row].id] for row in rows.tolist()], taxonomy)


def random_encoder() -> Transformer:
    """A small transformer with random weights."""
    config = transformers.BertConfig(
        vocab_size=1_000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    return Transformer(transformers.BertModel(config, add_pooling_layer=False), "mean", 0.1)  # type: ignore[no-untyped-call]


def fastest(work: Callable[[], Any]) -> float:
    """The shortest of several times in milliseconds, after one warm-up call."""
    work()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1_000 * min(seconds)


def measure(name: str, loss: str, labels: int) -> dict[str, Any]:
    """Measure one row in this process: build the model, train some steps, and predict the best labels."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = random_encoder()
    ids = torch.randint(0, 1_000, (BATCH, TOKENS))
    mask = torch.ones_like(ids)
    text(ids, mask).sum().backward()
    before, start = peak_mib(), time.process_time()
    taxonomy = regular_taxonomy(labels)
    documents = random_documents(taxonomy)
    sample = SAMPLE if loss == "sampled" else labels
    config = make(MODELS[name].Config, {**SETTINGS[name], "sample": sample}, "model")
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    model = MODELS[name](text, taxonomy, config, MODELS[name].prepare(documents, taxonomy, config, words))
    built = time.process_time() - start
    gold = batch_labels(documents.labels, np.arange(BATCH), model.uses_label_lists)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        found = model(Batch(ids, mask, gold)).loss
        assert found is not None
        found.backward()
        optimiser.step()
        optimiser.zero_grad()

    step_ms = fastest(step)
    model.eval()
    with torch.inference_mode():
        ask_ms = fastest(lambda: model.top_k(Batch(ids, mask), min(BEST, labels))) / BATCH
    return {
        "model": name,
        "loss": loss,
        "labels": labels,
        "build_seconds": round(built, 2),
        "mib": round(peak_mib() - before),
        "step_ms": round(step_ms, 1),
        "ask_ms": round(ask_ms, 3),
    }


def measure_aside(name: str, loss: str, labels: int) -> dict[str, Any]:
    """Measure one row in its own process."""
    command = [sys.executable, __file__, "--row", name, loss, str(labels)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | KEEPING)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The growth exponent of each column over the last two sizes; 1 is linear in the number of labels."""
    found = []
    for name, loss in dict.fromkeys((row["model"], row["loss"]) for row in rows):
        *_, small, large = (row for row in rows if (row["model"], row["loss"]) == (name, loss))
        step = math.log(large["labels"] / small["labels"])
        powers = {key: round(math.log(large[key] / max(small[key], 1e-9)) / step, 2) for key in MEASURED}
        found.append({"model": name, "loss": loss, "from": small["labels"], "to": large["labels"], **powers})
    return found


def show(rows: list[dict[str, Any]], powers: list[dict[str, Any]]) -> None:
    """Print a table of the rows, and one of the growth exponents."""
    table = Table(title=f"batches of {BATCH} documents of {TOKENS} tokens; the best {BEST} labels of a document")
    growth = Table(title="growth exponent, 1 being linear")
    for column in COLUMNS.values():
        table.add_column(column, justify="right")
    for column in ("model", "loss", "labels", *(COLUMNS[key] for key in MEASURED)):
        growth.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in COLUMNS))
    for row in powers:
        span = f"{row['from']:,} to {row['to']:,}"
        growth.add_row(row["model"], row["loss"], span, *(str(row[key]) for key in MEASURED))
    Console().print(table, growth)


def main() -> None:
    """Measure all rows and print tables, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", nargs=3, help="one row, in this process: model, loss, labels")
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.row[0], arguments.row[1], int(arguments.row[2]))))
        return
    rows = [
        measure_aside(name, loss, labels)
        for name, loss, labels in product(SETTINGS, ("exact", "sampled"), sorted(arguments.labels))
        if loss == "exact" or labels > SAMPLE
    ]
    powers = exponents(rows) if len(arguments.labels) > 1 else []
    show(rows, powers)
    result = {
        "benchmark": "labels",
        "batch": BATCH,
        "sample": SAMPLE,
        "rows": rows,
        "exponents": powers,
        "machine": f"1 of {os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
    }
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
