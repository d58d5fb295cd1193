"""Measure training steps and prediction on a GPU, or on a CPU: documents per second, time per step, memory.

`train_limit` and `eval_limit` are shares of what an H200 can compute; `peak_gib` is memory of the GPU, or of the whole
process so far: measure one row per process on a CPU.

Modes are fast, plain (fp32, padded), and trainer: Hugging Face's Trainer with the same model, in bf16, documents of
similar length per batch, padded. Synthetic documents with lengths normal(200, 80) clipped to 20-512,
141 labels in 7 stars, encoders with random weights; or the documents of a data folder. Run it as
`python benchmarks/bench_step.py [--encoder bert-base] [--rows hill:24 flat:24 hill:24:plain] [--out FILE]`.
"""

import argparse
import json
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from hill.data import Documents, read_data
from hill.data.batches import training_order
from hill.data.tokens import Tokens, tokenize
from hill.encoders import Transformer
from hill.encoders.transformer import load_pretrained, without_pooler
from hill.models import MODELS
from hill.settings import make
from hill.taxonomy import Label, Taxonomy, read_taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.trainer import StepRunner, make_steps
from hill.types import Batch

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", BASE),
    "bert-large": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "minilm": (
        "bert",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "mpnet": ("mpnet", {**BASE, "vocab_size": 30_527, "max_position_embeddings": 514}),
    "roberta-base": ("roberta", {**BASE, "vocab_size": 50_265, "max_position_embeddings": 514}),
    "distilbert": ("distilbert", {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}),
    "modernbert": ("modernbert", {}),
}
LIMIT = 790e12
"""bf16 operations per second of one H200, measured with large matrices."""
WARM_STEPS, WARM_SECONDS = 120, 40.0
TRAINER_WARM_STEPS, TRAINER_STEPS, TRAINER_DOCUMENTS = 10, 60, 4_000
"""Steps of Hugging Face's Trainer before and while it is measured, and the documents that it predicts."""
ON_GPU = torch.cuda.is_available()
DIGITS = None if ON_GPU else 1
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
COLUMNS = ("model", "batch", "mode", "train_docs_s", "step_ms", "train_limit", "eval_docs_s", "eval_limit", "peak_gib")


def wait() -> None:
    """Wait for the device."""
    if ON_GPU:
        torch.cuda.synchronize()


def peak_gib() -> float:
    """The peak of memory: of the GPU since `reset_peak_memory_stats`, or of the process."""
    if ON_GPU:
        return round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def share_of_limit(work: float, seconds: float) -> float | None:
    """The share of a GPU's limit that these operations are; None on a CPU."""
    return round(work / LIMIT / seconds, 3) if ON_GPU else None


def stars(count: int = 7, labels: int = 141) -> Taxonomy:
    """As many labels as WOS has, in 7 stars."""
    roots = [Label(f"r{i}", f"r{i}") for i in range(count)]
    return Taxonomy(roots + [Label(f"l{i}", f"l{i}", (f"r{i % count}",)) for i in range(labels - count)])


def synthetic(documents: int, taxonomy: Taxonomy, vocabulary: int) -> Split:
    """Random documents, each with the labels of one path."""
    draw = np.random.default_rng(0)
    lengths = draw.normal(200, 80, documents).clip(20, 512).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    leaves = draw.choice(taxonomy.leaves, documents)
    rows = csr_array((np.ones(documents, dtype=bool), (np.arange(documents), leaves)), (documents, len(taxonomy)))
    return Split(Tokens(draw.integers(1000, vocabulary, starts[-1]).astype(np.uint16), starts), taxonomy.closures(rows))


def build(name: str, encoder: str, taxonomy: Taxonomy, settings: dict[str, Any]) -> Any:
    """A model on an encoder of random weights, or on one from a folder."""
    torch.manual_seed(0)
    if encoder in SHAPES:
        kind, sizes = SHAPES[encoder]
        body: Any = without_pooler(transformers.AutoModel.from_config, transformers.AutoConfig.for_model(kind, **sizes))
    else:
        body = load_pretrained(encoder).encoder
    model = MODELS[name]
    given: Any = make(model.Config, settings, "model")
    labels = csr_array((1, len(taxonomy)), dtype=bool)
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    assets = model.prepare(Documents(["0"], ["a"], labels, 0), taxonomy, given, words)
    return model(Transformer(body, "mean", 0.1), taxonomy, given, assets)


def operations(encoder: Any, lengths: Any) -> float:
    """Multiply-adds of one forward pass over documents of these lengths, twice."""
    config = encoder.config
    d, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or config.hidden_dim
    inner *= 1.5 if config.model_type == "modernbert" else 1  # gated: three matrices in place of two
    return float((layers * (lengths * 2 * (4 * d * d + 2 * d * inner) + 4 * lengths * lengths * d)).sum())


def measure(session: Session, data: Split, seconds: float) -> dict[str, Any]:
    """Run training steps for this long after a warm-up, then predict all documents once."""
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    steps: StepRunner = make_steps(session, data)
    session.model.train()
    size, seed = session.config.batch_size, session.config.seed
    order = [documents for epoch in range(4) for documents in training_order(len(data), size, seed, epoch)[:-1]]
    done, start = 0, time.perf_counter()
    while done < WARM_STEPS and time.perf_counter() - start < WARM_SECONDS:  # kernels compiled, shapes recorded
        steps.step([order[done % len(order)]])
        done += 1
    wait()
    first, start = done, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(10):
            steps.step([order[done % len(order)]])
            done += 1
        wait()
    spent = time.perf_counter() - start
    taken = [order[i % len(order)] for i in range(first, done)]
    lengths = data.tokens.lengths
    trained = np.concatenate([lengths[documents] for documents in taken])
    peak = peak_gib()
    encoder = session.model.text.encoder
    for _ in session.inference.scores(data.tokens):
        pass
    start = time.perf_counter()
    for _ in session.inference.scores(data.tokens):
        pass
    read = time.perf_counter() - start
    return {
        "train_docs_s": round(len(trained) / spent, DIGITS),
        "step_ms": round(1000 * spent / len(taken), 2),
        "train_limit": share_of_limit(3 * operations(encoder, trained), spent),
        "eval_docs_s": round(len(data) / read, DIGITS),
        "eval_limit": share_of_limit(operations(encoder, lengths), read),
        "peak_gib": peak,
    }


class PaddedModel(torch.nn.Module):
    """A model as Trainer calls it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        """Padded documents to loss and logits."""
        output = self.model(Batch(input_ids, attention_mask, labels))
        return {"logits": output.logits} if labels is None else {"loss": output.loss, "logits": output.logits}


class StepTimes(transformers.TrainerCallback):
    """Notes when a step of Hugging Face's Trainer ends, from the last warm-up step to the last step."""

    def __init__(self, warm: int, last: int) -> None:
        self.warm, self.last = warm, last
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the device at the first and the last step that counts."""
        if state.global_step in (self.warm, self.last):
            wait()
            self.ends.append(time.perf_counter())


def measure_trainer(model: Any, data: Split, batch: int) -> dict[str, Any]:
    """Train and predict with Hugging Face's Trainer; its start and the first steps do not count."""
    tokens, rows, picked = (
        data.tokens,
        torch.from_numpy(data.labels.toarray()).float(),
        range(min(TRAINER_DOCUMENTS, len(data))),
    )
    ids = [torch.from_numpy(tokens[i].astype(np.int64)) for i in range(len(data))]
    examples = [{"input_ids": own, "labels": row} for own, row in zip(ids, rows, strict=True)]

    def collate_padded(items: list[dict[str, Any]]) -> dict[str, Tensor]:
        padded = torch.nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
        labels = torch.stack([item["labels"] for item in items])
        return {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": labels}

    times = StepTimes(TRAINER_WARM_STEPS, TRAINER_WARM_STEPS + TRAINER_STEPS)
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), bf16=True, per_device_train_batch_size=batch, per_device_eval_batch_size=128,
        max_steps=times.last, train_sampling_strategy="group_by_length", save_strategy="no", logging_strategy="no",
        report_to="none", disable_tqdm=True, dataloader_num_workers=4 if ON_GPU else 0,
        remove_unused_columns=False, use_cpu=not ON_GPU,
    )  # fmt: skip
    trainer = transformers.Trainer(PaddedModel(model), arguments, collate_padded, examples, callbacks=[times])
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    spent, peak = times.ends[1] - times.ends[0], peak_gib()
    longest_first = sorted((examples[i] for i in picked), key=lambda example: -len(example["input_ids"]))
    for _ in range(2):
        start = time.perf_counter()
        trainer.predict(longest_first)  # type: ignore[arg-type]
        read = time.perf_counter() - start
    encoder, lengths = model.text.encoder, tokens.lengths
    trained = 3 * operations(encoder, lengths) * TRAINER_STEPS * batch / len(data)
    return {
        "train_docs_s": round(TRAINER_STEPS * batch / spent, DIGITS),
        "step_ms": round(1000 * spent / TRAINER_STEPS, 2),
        "train_limit": share_of_limit(trained, spent),
        "eval_docs_s": round(len(picked) / read, DIGITS),
        "eval_limit": share_of_limit(operations(encoder, lengths[: len(picked)]), read),
        "peak_gib": peak,
    }


def main() -> None:
    """Measure every model at every batch size and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="bert-base")
    parser.add_argument("--rows", nargs="+", default=["hill:24", "flat:24"], help="model:batch, or model:batch:mode")
    parser.add_argument("--documents", type=int, default=16_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--data", type=Path, help="a data folder with taxonomy.tsv, for a pretrained --encoder")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    taxonomy = read_taxonomy(arguments.data / "taxonomy.tsv") if arguments.data else stars()
    data = synthetic(arguments.documents, taxonomy, 30_000)
    if arguments.data:
        found = read_data(arguments.data, taxonomy)["train"]
        data = Split(tokenize(found.texts, load_pretrained(arguments.encoder).tokenizer, 512), found.labels)
    rows = []
    machine = torch.cuda.get_device_name() if ON_GPU else f"{torch.get_num_threads()} cores, {platform.machine()}"
    machine += f", torch {torch.__version__}, transformers {transformers.__version__}"
    result = {"benchmark": "step", "encoder": arguments.encoder, "labels": len(taxonomy), "machine": machine}
    for asked in arguments.rows:
        name, batch, mode = (*asked.split(":"), "fast")[:3]
        model = build(name, arguments.encoder, taxonomy, {})
        if mode == "trainer":
            measured = measure_trainer(model, data, int(batch))
        else:
            config = TrainConfig(batch_size=int(batch), plain=mode == "plain")
            measured = measure(Session(model, config, DEVICE), data, arguments.seconds)
        rows.append({"model": name, "batch": int(batch), "mode": mode, **measured})
        print(json.dumps(rows[-1]), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")
        del model
        if ON_GPU:
            torch.cuda.empty_cache()
    table = Table(title=f"{arguments.encoder}, {len(taxonomy)} labels, mean length {data.tokens.lengths.mean():.0f}")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(str(row[column]) for column in COLUMNS))
    Console(width=140).print(table)
    print(json.dumps({**result, "rows": rows}))


if __name__ == "__main__":
    main()
