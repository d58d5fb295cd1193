"""OnnxClassifier: an exported model, run by ONNX Runtime; it needs no torch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hill.data.tokens import Tokens
from hill.data.windows import WindowConfig, score_windows
from hill.decode import DecodeConfig
from hill.errors import CheckpointError, HillError
from hill.export.folder import GRAPH, read_export
from hill.extras import need
from hill.guard import unusable
from hill.predictor import Predictor, Scored, check_texts
from hill.settings import make
from hill.taxonomy import read_taxonomy
from hill.taxonomy.cells import Table, keep_best, most_kept
from hill.types import IntArray

BATCH_TOKENS = 512
"""Tokens of a batch, padding included: enough to keep the processor busy, few enough to stay in its cache."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
AHEAD = 4
"""Batches of each thread that are computed before their scores are asked for."""
SLOW_FUSIONS = ("SkipLayerNormFusion",)
"""Fusions of ONNX Runtime that slow a graph down on a CPU: the fused kernel took 6 times as long as its two parts."""


class OnnxClassifier(Predictor):
    """Predicts like the classifier that was exported to this folder.

    Args:
        folder: what `export_onnx` wrote.
        threads: how many batches are computed at a time, each by one thread; as many as there are cores where it is not
            given. Scores do not depend on it.
        batch_tokens: most tokens of a batch, but each has a text. In 8-bit integers a text's scores depend a little on
            the texts beside it, since they share scales; with 1 every text is alone.
    """

    def __init__(self, folder: Path, threads: int | None = None, batch_tokens: int = BATCH_TOKENS) -> None:
        documents = read_export(folder)
        config = documents["config.json"]
        self.name, self.int8 = config["model"], config["int8"]
        self.max_length, self._pad = config["max_length"], config["pad"]
        self.windows = make(WindowConfig, config.get("windows", {}), "windows")
        self.metrics: dict[str, Any] = documents["metrics.json"]
        self.taxonomy = read_taxonomy(folder / "taxonomy.json")
        self.decode_config = make(DecodeConfig, config["decode"], "decode")
        self.set_thresholds(documents["thresholds.json"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._session = start_session(folder / GRAPH)
        self._threads = threads or CORES
        self._batch_tokens = batch_tokens

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], threads: int | None = None, batch_tokens: int = BATCH_TOKENS
    ) -> OnnxClassifier:
        """The exported model of a folder; a missing, damaged or foreign file is a `CheckpointError` that names it."""
        try:
            return cls(Path(folder), threads, batch_tokens)
        except HillError:
            raise
        except Exception as error:  # of whichever kind: the files may be anyone's, and hold anything
            raise unusable(folder, error) from error

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The model's own scores between 0 and 1 of every text, a batch at a time, the longest texts first."""
        texts = list(check_texts(texts))
        return score_windows(texts, self._tokenizer, self.max_length, self.windows, self._score)

    def _score(self, tokens: Tokens) -> Iterator[Scored]:
        waiting: deque[tuple[IntArray, Future[Table]]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            for documents in batch_documents(tokens.lengths, self._batch_tokens):
                waiting.append((documents, pool.submit(self._run, tokens, documents)))
                if len(waiting) > AHEAD * self._threads:
                    done, found = waiting.popleft()
                    yield done, found.result()
            for done, found in waiting:
                yield done, found.result()

    def _run(self, tokens: Tokens, documents: IntArray) -> Table:
        ids, mask = pad(tokens, documents, self._pad)
        scores: npt.NDArray[np.float32] = self._session.run(None, {"ids": ids, "mask": mask})[0]
        most = most_kept(self.decode_config.keep, len(self.taxonomy))
        return keep_best(scores, most) if most else scores


def start_session(graph: Path) -> Any:
    """The graph, ready to run in the thread that calls it."""
    runtime = need("onnxruntime", "onnx", "an exported model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(SLOW_FUSIONS)
        )
    except Exception as error:  # its errors have no base class of their own
        raise CheckpointError(f"'{graph}' cannot be run: {str(error).splitlines()[0]}") from None


def batch_documents(lengths: IntArray, budget: int) -> Iterator[IntArray]:
    """The documents of each batch, longest first: as many as fit the budget when padded, but at least one."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def pad(tokens: Tokens, documents: IntArray, filler: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token ids and mask (B, T) of these documents, as wide as the longest of them."""
    lengths = tokens.lengths[documents][:, None]
    places = np.arange(int(lengths.max()))
    mask = places < lengths
    ids = np.full(mask.shape, filler, dtype=np.int64)
    ids[mask] = tokens.ids[(tokens.starts[documents][:, None] + places)[mask]]
    return ids, mask.astype(np.int64)
