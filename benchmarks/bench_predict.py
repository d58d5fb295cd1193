"""Predict a file: documents per second from file to file, and memory, which must not grow with the file.

The encoder has random weights, the texts are short and synthetic; each size runs in its own process. Run it as
`python benchmarks/bench_predict.py [--encoder tiny] [--sizes 10000 1000000] [--words 12] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers

from hill.bulk import predict_file
from hill.classifier import HillClassifier
from hill.settings import Groups
from hill.taxonomy import Label, Taxonomy

SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
VOCABULARY = 5_000
COLUMNS = ("documents", "docs_s", "peak_mib")


def make_model(folder: Path, shape: str) -> None:
    """A HILL model with random weights for 141 labels in 7 stars, saved."""
    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = folder / "encoder"
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(encoder)
    config = transformers.BertConfig.from_dict({**SHAPES[shape], "vocab_size": len(words)})
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(encoder)  # type: ignore[no-untyped-call]
    roots = [Label(f"r{i}", f"r{i}") for i in range(7)]
    taxonomy = Taxonomy(roots + [Label(f"l{i}", f"l{i}", (f"r{i % 7}",)) for i in range(134)])
    settings: Groups = {"model": {"encoder": str(encoder)}, "train": {"epochs": 1, "head_start": "off"}}
    texts = ["w1 w2 w3", "w4 w5", "w6 w7"] * 4
    classifier = HillClassifier(taxonomy, "hill", settings, preset=None).fit(texts, [["l1"], ["l2"], ["l3"]] * 4)
    classifier.save(folder / "model")


def write_texts(file: Path, count: int, words: int) -> None:
    """This number of texts with about this number of words."""
    draw = np.random.default_rng(0)
    with file.open("w") as out:
        for start in range(0, count, 10_000):
            for i, row in enumerate(draw.integers(0, VOCABULARY, (min(10_000, count - start), words))):
                text = " ".join(f"w{word}" for word in row[: 1 + i % words])
                out.write(json.dumps({"id": str(start + i), "text": text}) + "\n")


def predict_once(folder: Path, source: Path) -> None:
    """Predict a file and print speed and peak memory."""
    classifier = HillClassifier.load(folder / "model")
    start = time.perf_counter()
    count = predict_file(classifier, source, folder / "out.jsonl")
    spent = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"documents": count, "docs_s": round(count / spent), "peak_mib": round(peak)}))


def main() -> None:
    """Measure every size and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="tiny", choices=list(SHAPES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--once", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        predict_once(*arguments.once)
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder, arguments.encoder)
        for size in arguments.sizes:
            write_texts(folder / "texts.jsonl", size, arguments.words)
            command = [sys.executable, __file__, "--once", str(folder), str(folder / "texts.jsonl")]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(title=f"hill predict, {arguments.encoder}, up to {arguments.words} words a text")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{row[column]:,}" for column in COLUMNS))
    Console().print(table)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"
    machine = f"{device}, {platform.machine()}, torch {torch.__version__}"
    facts = {"encoder": arguments.encoder, "words": arguments.words, "machine": machine}
    result = {"benchmark": "predict", **facts, "rows": rows}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
