"""Measure training with and without adapters (LoRA) on a GPU: peak memory and documents per second.

`flat` at batch 24 on BERT of 12 layers x 768 and of 24 layers x 1024 with random weights, on the documents of
bench_step.py. Run it as `python benchmarks/bench_lora.py [--rank 8] [--out FILE]`; needs peft.
"""

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_step import build, measure, stars, synthetic

from hill.encoders.lora import add_adapters
from hill.errors import ConfigError, need
from hill.taxonomy import Taxonomy
from hill.train import Session, Split, TrainConfig

ENCODERS = {"12x768": "bert-base", "24x1024": "bert-large"}


def train(encoder: str, rank: int, batch: int, data: Split, taxonomy: Taxonomy, seconds: float) -> dict[str, Any]:
    """Train with adapters of this rank; 0 to train all weights."""
    model = build("flat", encoder, taxonomy, {})
    add_adapters(model.text, rank)
    session = Session(model, TrainConfig(batch_size=batch, lora=rank), torch.device("cuda"))
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    found = measure(session, data, seconds)
    return {"trained_weights": trained, **{key: found[key] for key in ("peak_gib", "train_docs_s", "step_ms")}}


def main() -> None:
    """Train each encoder in full and with adapters; print a JSON line for each, then all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--documents", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_lora measures a GPU; there is none")
    try:
        peft = need("peft", "lora", "bench_lora")
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
    machine = f"{torch.cuda.get_device_name()}, {versions}"
    taxonomy = stars()
    data = synthetic(arguments.documents, taxonomy, 30_000)
    rows: list[dict[str, Any]] = []
    result = {"benchmark": "lora", "model": "flat", "batch": arguments.batch, "machine": machine, "rows": rows}
    for shape, encoder in ENCODERS.items():
        for rank in (0, arguments.rank):
            found = train(encoder, rank, arguments.batch, data, taxonomy, arguments.seconds)
            rows.append({"encoder": shape, "lora": rank, **found})
            print(json.dumps(rows[-1]), flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            gc.collect()  # frees the CUDA graphs
            torch.cuda.empty_cache()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
