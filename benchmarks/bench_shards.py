"""Bytes that a rank holds while it trains a BERT-base that the ranks share: weights, gradients, optimiser; no times.

An encoder with random weights on CPUs; the bytes are those of the tensors' own storage after one step, the most of any
rank. Run it as `python benchmarks/bench_shards.py [--ranks 1 2 4] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import socket
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import transformers
from scipy.sparse import csr_array

from hill.data.tokens import Tokens
from hill.models import MODELS
from hill.nn import Transformer
from hill.taxonomy import Label, Taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.ranks import join, joined
from hill.train.steps import Steps, loss_of

LABELS, DOCUMENTS, LENGTH = 100, 8, 16


def make_session() -> tuple[Session, Split]:
    """A flat model with BERT-base, sharded where ranks share it, and some documents of any words."""
    torch.manual_seed(0)
    taxonomy = Taxonomy([Label(str(i), f"Label {i}") for i in range(LABELS)])
    encoder = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)  # type: ignore[no-untyped-call]
    model = MODELS["flat"](Transformer(encoder, "mean", 0.1), taxonomy, MODELS["flat"].Config(), {})
    session = Session(model, TrainConfig(device="cpu", batch_size=DOCUMENTS), torch.device("cpu"))
    session.shard()
    ids = np.random.default_rng(0).integers(1_000, 30_000, DOCUMENTS * LENGTH).astype(np.int32)
    tokens = Tokens(ids, np.arange(0, len(ids) + 1, LENGTH))
    return session, Split(tokens, csr_array(np.eye(DOCUMENTS, LABELS, dtype=np.float32)))


def size_of(tensors: Iterable[Any]) -> int:
    """Bytes of what this rank holds of tensors, some of which lie in one storage."""
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local}
    return sum(storages.values())


def measure(rank: int, count: int, port: int, folder: str) -> None:
    """One step as this rank takes it; its bytes go to a file."""
    torch.set_num_threads(1)
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in named.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    join("cpu")
    session, data = make_session()
    steps, weights = Steps(session, data), list(session.model.parameters())
    output = steps.learn(np.arange(DOCUMENTS), 1, True)
    found = {"weights": size_of(weights), "gradients": size_of(weight.grad for weight in weights)}
    steps.update(loss_of(output).detach(), [])
    found["optimiser"] = size_of(each for state in session.optimiser.state.values() for each in state.values())
    (Path(folder) / f"{count}-{rank}.json").write_text(json.dumps(found))
    joined().leave()


def main() -> None:
    """Measure with each number of ranks, print a line each, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for count in asked.ranks:
        with TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            mp.spawn(measure, (count, port, folder), nprocs=count)  # type: ignore[attr-defined, no-untyped-call]
            ranks = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
        most = {name: max(each[name] for each in ranks) for name in ranks[0]}
        rows.append({"ranks": count, **most, "all": max(sum(each.values()) for each in ranks)})
        print("  ".join(f"{name} {value:,}" for name, value in rows[-1].items()))
    about = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"}
    result = {"benchmark": "shards", "encoder": "bert-base, random weights", "labels": LABELS, **about, "rows": rows}
    print(json.dumps(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
