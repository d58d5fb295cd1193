"""Training HILL with very many labels on a CPU: peak memory beyond the encoder, and seconds a step.

Run it as `python benchmarks/bench_labels.py [--labels 20000] [--batch 8] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from hill.models import HILL
from hill.models.hill import TREE_FILE, HILLConfig
from hill.nn import Transformer
from hill.taxonomy import Label, Taxonomy
from hill.tree import build_tree
from hill.types import Batch

STEPS = 5


def random_taxonomy(labels: int) -> Taxonomy:
    """Each label under a random earlier one, so that some have many children."""
    draw = np.random.default_rng(0)
    return Taxonomy(Label(f"l{i}", f"l{i}", (f"l{draw.integers(0, i)}",) if i > 20 else ()) for i in range(labels))


def peak_mib() -> float:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Train a few steps and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    encoder = transformers.BertModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    ids = torch.randint(0, 30_000, (arguments.batch, 64))
    labels = torch.rand(arguments.batch, arguments.labels) < 5 / arguments.labels
    text = Transformer(encoder, "mean", 0.1)
    optimiser = torch.optim.AdamW(text.parameters())
    text(ids, torch.ones_like(ids)).sum().backward()
    optimiser.step()
    before = peak_mib()
    taxonomy, settings = random_taxonomy(arguments.labels), HILLConfig(height=2)
    tree = build_tree(taxonomy, settings.height, settings.method).tree
    assets = {TREE_FILE: {"parents": [parents.tolist() for parents in tree.parents]}}
    model = HILL(text, taxonomy, settings, assets)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = model(Batch(ids, torch.ones_like(ids), labels)).loss
        assert loss is not None
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        seconds.append(time.perf_counter() - start)
    result = {
        "benchmark": "labels",
        "labels": arguments.labels,
        "batch": arguments.batch,
        "tree": list(model.tree.sizes),
        "encoder_mib": round(before),
        "beyond_encoder_mib": round(peak_mib() - before),
        "seconds_a_step": round(min(seconds), 3),
        "loss": round(loss.item(), 4),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
    }
    table = Table(title="HILL training with many labels")
    for column in ("labels", "batch", "tree", "beyond_encoder_mib", "seconds_a_step"):
        table.add_column(column.replace("_", " "), justify="right")
    table.add_row(*(str(result[c]) for c in ("labels", "batch", "tree", "beyond_encoder_mib", "seconds_a_step")))
    Console().print(table)
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
