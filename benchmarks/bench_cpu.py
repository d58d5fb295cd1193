"""Predict on a CPU: documents per second with PyTorch and the exported model, and the F1 of each precision.

Run it as `python benchmarks/bench_cpu.py [--model FOLDER] [--data FILE] [--documents 256] [--rounds 4] [--threads 2]
[--out FILE]`. Without a model, HILL on minilm trained on 8 texts is measured; macro F1 needs a model and data. All
variants are measured in every round, and the best round counts. Texts have 128 tokens; with data, also its texts. If
sentence-transformers is installed, its `encode` is measured too: the vectors of minilm alone, without a classifier.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.data.tokens import tokenize
from hill.encoders.int8 import cpu_has_int8
from hill.encoders.transformer import _find_packaged
from hill.export import OnnxClassifier
from hill.export.onnx import export_onnx
from hill.models.inference import Inference, cpu_has_bf16
from hill.predictor import ScoredBatch
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch

LENGTH = 128
PLAIN_BATCH = 32
VECTORS = "sentence-transformers, vectors alone"
Score = Callable[[list[str]], Iterable[ScoredBatch]]


def untrained() -> HillClassifier:
    """An untrained HILL on minilm with 150 labels; its speed does not depend on the weights."""
    labels = [Label(f"l{i}", f"label {i}", (f"l{i // 6 - 1}",) if i >= 6 else ()) for i in range(150)]
    settings: dict[str, dict[str, Any]] = {"train": {"epochs": 1, "device": "cpu"}, "data": {"max_length": LENGTH}}
    classifier = HillClassifier(Taxonomy(labels), settings=settings, preset=None)
    return classifier.fit([f"text number {i}" for i in range(8)], [[f"l{140 + i}"] for i in range(8)])


def made_up(classifier: HillClassifier, count: int) -> list[str]:
    """Texts of at least 128 tokens: words drawn from the vocabulary."""
    words = [word for word in classifier.stored.tokenizer.get_vocab() if word.isascii() and word.isalpha()]
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(sorted(words), LENGTH)) for _ in range(count)]


def plain(classifier: HillClassifier) -> Score:
    """The model in plain PyTorch: fp32, batches in the given order, padded to their longest text."""
    model, tokenizer = classifier.stored.model.eval(), classifier.stored.tokenizer

    def score(texts: list[str]) -> Iterator[ScoredBatch]:
        tokenizer.enable_truncation(classifier.max_length)
        for start in range(0, len(texts), PLAIN_BATCH):
            found = tokenizer.encode_batch(texts[start : start + PLAIN_BATCH])
            rows = [torch.tensor(encoding.ids) for encoding in found]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.text.pad)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            with torch.inference_mode():
                scores = model.scores(model(Batch(ids, mask)).logits)
            yield np.arange(start, start + len(rows)), scores.numpy()
        tokenizer.no_truncation()

    return score


class Int8Inference(Inference):
    """Inference in int8 on any CPU."""

    int8 = True


def packed(classifier: HillClassifier, precision: str) -> Score:
    """The model as hill runs it, packed, in fp32, or in int8 as on a CPU without bf16."""
    stored = classifier.stored
    kind = Int8Inference if precision == "int8" else Inference
    inference = kind(stored.model, torch.device("cpu"), precision, trained=True)
    return lambda texts: inference.scores(tokenize(texts, stored.tokenizer, classifier.max_length))


def encode(max_length: int) -> Score:
    """The vectors of minilm by sentence-transformers, in its default settings."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(_find_packaged("minilm"), device="cpu")
    model.max_seq_length = max_length

    def score(texts: list[str]) -> Iterator[ScoredBatch]:
        model.encode(texts)
        return iter(())

    return score


def speeds(ways: dict[str, Score], texts: list[str], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Documents per second and processor milliseconds per document of each variant: the best of several rounds.

    Processor time is that of all threads, and says more than the clock on a machine that others use too.
    """
    wall, work = (dict.fromkeys(ways, float("inf")) for _ in range(2))
    for _ in range(rounds):
        for name, score in ways.items():
            start, busy = time.perf_counter(), time.process_time()
            for _ in score(texts):
                pass
            wall[name] = min(wall[name], time.perf_counter() - start)
            work[name] = min(work[name], time.process_time() - busy)
    documents_a_second = {name: round(len(texts) / seconds, 1) for name, seconds in wall.items()}
    return documents_a_second, {name: round(1_000 * seconds / len(texts), 2) for name, seconds in work.items()}


def main() -> None:
    """Measure every variant and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--documents", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    classifier = HillClassifier.load(arguments.model, device="cpu") if arguments.model else untrained()
    documents: Documents | None = None
    if arguments.data:
        splits = read_data(arguments.data, classifier.taxonomy)
        documents = splits.get("dev") or next(iter(splits.values()))
    with TemporaryDirectory() as scratch:
        ways: dict[str, Score] = {
            "PyTorch fp32, plain": plain(classifier),
            "hill": classifier.scores,
            "hill, fp32": packed(classifier, "fp32"),
        }
        if cpu_has_int8():
            ways["hill, int8"] = packed(classifier, "int8")
        for int8 in (False, True):
            folder = Path(scratch) / f"int8-{int8}"
            export_onnx(classifier, folder, int8)
            ways["ONNX int8" if int8 else "ONNX fp32"] = OnnxClassifier.load(folder, arguments.threads).scores
        result = measure(classifier, ways, documents, arguments)
    show(result)
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def measure(
    classifier: HillClassifier, ways: dict[str, Score], documents: Documents | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Speed, quality and the machine."""
    vectors = {VECTORS: encode(classifier.max_length)} if find_spec("sentence_transformers") else {}
    made, work = speeds({**ways, **vectors}, made_up(classifier, arguments.documents), arguments.rounds)
    result: dict[str, Any] = {
        "benchmark": "cpu",
        "threads": arguments.threads,
        "documents": arguments.documents,
        "rounds": arguments.rounds,
        "documents_a_second": made,
        "times_plain": {name: round(speed / made["PyTorch fp32, plain"], 2) for name, speed in made.items()},
        "processor_ms": work,
    }
    if documents:
        texts = documents.texts[: arguments.documents]
        result["documents_a_second_of_data"], _ = speeds(ways, texts, arguments.rounds)
    if documents and arguments.model:
        metrics = {name: classifier.measure(score(documents.texts), documents.labels) for name, score in ways.items()}
        result["evaluated"] = len(documents)
        for metric in ("micro_f1", "macro_f1"):
            result[metric] = {name: round(100 * found[metric], 2) for name, found in metrics.items()}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {instructions()}, torch {torch.__version__}"
    result["load"] = [round(load, 2) for load in os.getloadavg()]
    return result | {"machine": f"{machine}, onnxruntime {version('onnxruntime')}"}


def instructions() -> str:
    """Whether the processor has instructions for 8-bit integers (VNNI) and for bf16."""
    found = Path("/proc/cpuinfo")
    vnni = "with VNNI" if found.exists() and "vnni" in found.read_text() else "VNNI unknown"
    return f"{vnni}, {'with' if cpu_has_bf16() else 'without'} bf16"


def show(result: dict[str, Any]) -> None:
    """The table."""
    columns = {
        "docs/s, 128 tokens": "documents_a_second",
        "times plain": "times_plain",
        "ms of processor": "processor_ms",
        "docs/s, data": "documents_a_second_of_data",
        "micro F1": "micro_f1",
        "macro F1": "macro_f1",
    }
    table = Table(title=f"Prediction on {result['threads']} threads of a CPU")
    table.add_column("")
    known = {title: result[key] for title, key in columns.items() if key in result}
    for title in known:
        table.add_column(title, justify="right")
    for name in result["documents_a_second"]:
        table.add_row(name, *(str(values.get(name, "")) for values in known.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
