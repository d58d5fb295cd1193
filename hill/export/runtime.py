"""Exported models: their folder, and prediction with ONNX Runtime."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from scipy.sparse import csr_array
from tokenizers import Tokenizer

from hill.data.documents import check_texts
from hill.data.seen import SEEN_FILE, read_seen
from hill.data.tokens import Tokens, tokenize
from hill.data.windows import overlap, score_windows
from hill.decode import DecodeConfig, read_mixture
from hill.decode.calibration import sigmoid
from hill.errors import CheckpointError, HillError, need
from hill.io import CHECKSUMS, check_folder, check_model, finish_save, read_object, unusable
from hill.ngrams import NgramVectors
from hill.predictor import Predictor, ScoredBatch
from hill.settings import check_at_least, make
from hill.sparse import Matrix, max_entries, top_k
from hill.taxonomy import Taxonomy
from hill.types import IntArray

ONNX_FORMAT = "hill-onnx"
ONNX_VERSION = 1
ENSEMBLE_VERSION = 2
"""The version of exports with further models, which earlier versions of hill cannot read."""
GRAPH = "model.onnx"
MIXTURE = "ensemble.json"
WORDS, WORDS_TOKENIZER, WORDS_WEIGHTS = "words.json", "tokenizer.json", "weights.safetensors"
"""The files of a model of words, in a folder of its own."""
WORDS_BATCH = 256
"""Texts that a model of words scores at a time."""


def is_export(folder: Path) -> bool:
    """Whether a folder contains an exported model; raises an error for an unsafe folder."""
    check_model(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == ONNX_FORMAT


def read_export(folder: Path) -> dict[str, Any]:
    """Verify the checksums of an exported model, and return its JSON documents by file name."""
    finish_save(folder)
    if not is_export(folder):
        raise CheckpointError(f"'{folder}' is no exported model; create one with: hill export MODEL --onnx {folder}")
    version = read_object(folder / "config.json").get("version")
    if version not in (ONNX_VERSION, ENSEMBLE_VERSION):
        raise CheckpointError(
            f"'{folder}' has version {version!r}; expected {ONNX_FORMAT!r}, version {ONNX_VERSION} or "
            f"{ENSEMBLE_VERSION}; export it again"
        )
    check_folder(folder)
    return {name: read_object(folder / name) for name in read_object(folder / CHECKSUMS) if name.endswith(".json")}


# Prediction

BATCH_TOKENS = 512
"""Tokens per batch with padding: enough to use the processor well, few enough for its cache."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PREFETCH = 4
"""Batches per thread that are computed in advance."""


class OnnxClassifier(Predictor):
    """Predicts like the classifier that was exported to a folder.

    Args:
        folder: the folder that `export_onnx` wrote.
        threads: number of batches that are computed in parallel, with one thread each; by default the number of cores.
            Scores do not depend on it.
        batch_tokens: maximum number of tokens per batch; 1 for one text per batch. With int8, the scores of a text
            depend slightly on the other texts of its batch, since they share scales.
    """

    def __init__(self, folder: Path, threads: int | None = None, batch_tokens: int = BATCH_TOKENS) -> None:
        documents = read_export(folder)
        config = documents["config.json"]
        self.name, self.int8 = config["model"], config["int8"]
        self.max_length, self._pad = config["max_length"], config["pad"]
        windows = {"most": 0, "overlap": 32, "pool": "mean"} | config.get("windows", {})
        check_at_least(windows["most"], 0, "windows.most")
        if windows["overlap"] not in (32, overlap(self.max_length)) or windows["pool"] != "mean":  # earlier versions
            raise CheckpointError(
                f"'{folder}' was made with data.overlap = {windows['overlap']!r} and data.pool = {windows['pool']!r}, "
                "settings that were removed; train and export it again"
            )
        self.windows: int = windows["most"]
        self.metrics: dict[str, Any] = documents["metrics.json"]
        self.taxonomy = Taxonomy.from_dict(documents["taxonomy.json"], str(folder / "taxonomy.json"))
        decode = {name: value for name, value in config["decode"].items() if name != "support"}  # earlier versions
        self.decode_config = make(DecodeConfig, decode, "decode")
        self.set_thresholds(documents["thresholds.json"])
        self.seen = read_seen(documents[SEEN_FILE]) if SEEN_FILE in documents else None
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if ensemble := documents.get(MIXTURE):
            names = [f"member-{number + 1}" for number in range(len(ensemble["mixture"]["weights"]) - 1)]
            self.members = tuple(WordsClassifier(folder / name, self.taxonomy, self.decode_config) for name in names)
            self.mixture = read_mixture(ensemble["mixture"], self.taxonomy, 1 + len(names))
        self._session = start_session(folder / GRAPH)
        self._threads, self._batch_tokens = threads or CORES, batch_tokens

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], threads: int | None = None, batch_tokens: int = BATCH_TOKENS
    ) -> OnnxClassifier:
        """Load an exported model; raises a `CheckpointError` that names a missing, damaged or foreign file."""
        try:
            return cls(Path(folder), threads, batch_tokens)
        except HillError:
            raise
        except Exception as error:  # the files may come from anyone and contain anything
            raise unusable(folder, error) from error

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Yield the raw scores between 0 and 1 in batches, longest texts first."""
        texts = check_texts(texts)
        if self.windows < 2:
            return self.mix(self._score(tokenize(texts, self._tokenizer, self.max_length)), texts)
        return self.mix(score_windows(texts, self._tokenizer, self.max_length, self.windows, self._score), texts)

    def _score(self, tokens: Tokens) -> Iterator[ScoredBatch]:
        waiting: deque[tuple[IntArray, Future[Matrix]]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            for documents in batch_documents(tokens.lengths, self._batch_tokens):
                waiting.append((documents, pool.submit(self._run, tokens, documents)))
                if len(waiting) > PREFETCH * self._threads:
                    done, scores = waiting.popleft()
                    yield done, scores.result()
            for done, scores in waiting:
                yield done, scores.result()

    def _run(self, tokens: Tokens, documents: IntArray) -> Matrix:
        ids, mask = tokens.pad(documents, self._pad)
        scores: npt.NDArray[np.float32] = self._session.run(None, {"ids": ids, "mask": mask})[0]
        if not np.isfinite(scores.sum()):
            raise CheckpointError("the exported model gives scores that are not numbers; export it again")
        k = max_entries(self.decode_config.keep, len(self.taxonomy))
        return top_k(scores, k) if k else scores


class WordsClassifier(Predictor):
    """A linear model on TF-IDF vectors beside an exported model.

    Args:
        folder: its folder in that of the export.
        taxonomy: the labels.
        decode_config: decoding of the export; it says how many scores are kept.
    """

    def __init__(self, folder: Path, taxonomy: Taxonomy, decode_config: DecodeConfig) -> None:
        facts, arrays = read_object(folder / WORDS), load_file(folder / WORDS_WEIGHTS)
        self.taxonomy, self.decode_config, self._max_length = taxonomy, decode_config, facts["max_length"]
        self._tokenizer = Tokenizer.from_file(str(folder / WORDS_TOKENIZER))
        self._ngrams = NgramVectors(self._tokenizer, facts["pairs"])
        self._ngrams.set_features(arrays["keys"], arrays["counts"], facts["documents"], facts["characters"])
        parts = arrays["weights"], arrays["labels"], arrays["starts"]
        self._weights: csr_array[Any] = csr_array(parts, shape=(len(arrays["keys"]), len(taxonomy)))
        self._weights.check_format(full_check=True)
        self._bias = arrays["bias"]
        if self._bias.shape != (len(taxonomy),):
            raise CheckpointError(f"'{folder}' has {len(self._bias)} labels; expected {len(taxonomy)}; export it again")

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Yield the raw scores between 0 and 1 in batches."""
        texts, k = check_texts(texts), max_entries(self.decode_config.keep, len(self.taxonomy))
        for start in range(0, len(texts), WORDS_BATCH):
            tokens = tokenize(texts[start : start + WORDS_BATCH], self._tokenizer, self._max_length)
            logits = (self._ngrams.vectors(tokens.ids, tokens.starts) @ self._weights).toarray() + self._bias
            scores = sigmoid(logits).astype(np.float32)
            yield start + np.arange(len(tokens)), top_k(scores, k) if k else scores


def start_session(graph: Path) -> Any:
    """Open a session that runs the graph in the calling thread."""
    runtime = need("onnxruntime", "onnx", "an exported model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    slow = ["SkipLayerNormFusion"]  # on a CPU the fused kernel takes 6 times as long as its two parts
    try:
        return runtime.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"], disabled_optimizers=slow
        )
    except Exception as error:  # ONNX Runtime has no common base class of its errors
        raise CheckpointError(f"'{graph}' cannot be run by ONNX Runtime: {str(error).splitlines()[0]}") from None


def batch_documents(lengths: IntArray, budget: int) -> Iterator[IntArray]:
    """Yield the documents of each batch, longest first: as many as fit the budget with padding, at least one."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size
