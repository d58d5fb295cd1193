"""Inference: a model on a device that turns tokens into scores. It knows no optimiser and no other processes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor

from hill.data.batches import DeviceDocuments, collate, move, reading_order, to_device
from hill.data.tokens import Tokens
from hill.errors import ConfigError
from hill.models.base import HTCModel
from hill.sparse import Matrix, max_entries, top_k_matrix
from hill.types import Batch, IntArray, Packed

BATCH_SIZE = 64
"""Documents per padded batch."""
BATCH_TOKENS = 65_536
"""Tokens per packed batch."""

if hasattr(os, "register_at_fork"):  # a forked child does not have torch's threads and would wait for them forever
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


class Inference:
    """A model on a device, ready for forward passes without gradients.

    Args:
        model: the model; it is moved to the device.
        device: the device.
        precision: fp32, bf16, or auto: bf16 on a GPU that supports it. Weights stay fp32.
    """

    def __init__(self, model: HTCModel, device: torch.device, precision: str = "auto") -> None:
        self.model = model.to(device)
        self.device = device
        self.precision = precision

    @property
    def bf16(self) -> bool:
        """Whether matrices are multiplied in bf16."""
        if self.precision == "auto":
            return self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return self.precision == "bf16"

    @property
    def packed(self) -> bool:
        """Whether batches are packed instead of padded: if the model only needs text vectors, on a GPU also bf16."""
        return self.model.by_vector and self.model.text.packs and (self.bf16 or self.device.type == "cpu")

    def autocast(self) -> AbstractContextManager[object]:
        """Mixed precision, if configured; for forward passes only."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """With bf16, multiply the remaining fp32 matrices in TF32."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.bf16 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def scores(self, tokens: Tokens, keep: int = 0) -> Iterator[tuple[IntArray, Matrix]]:
        """Yield the indices of the documents of a batch (B) and their scores (B, L), the longest documents first.

        Scores are sparse, with the `keep` highest per document, if `keep` is given or the labels are very many; the
        full matrix is then never built. The device computes the next batch while the caller uses the last one.
        """
        self.model.eval()
        labels = sum(map(len, self.model.levels))
        top_k = max_entries(keep, labels)
        previous: tuple[IntArray, Sequence[Tensor]] | None = None
        for documents, batch in self.batches(tokens):
            with torch.inference_mode(), self.tf32(), self.autocast():
                model = self.model
                outputs = model.best(batch, top_k) if top_k else (model.scores(model(batch).logits),)
                result = [self.gather(each, documents) for each in outputs]
            if previous:
                yield previous[0], _to_matrix(previous[1], labels)
            previous = documents, result
        if previous:
            yield previous[0], _to_matrix(previous[1], labels)

    def vectors(self, tokens: Tokens) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield the indices of the documents of a batch (B) and the vectors of the text encoder (B, D)."""
        self.model.eval()
        for documents, batch in self.batches(tokens):
            with torch.inference_mode(), self.tf32(), self.autocast():
                vectors = self.gather(self.model.text.read(batch), documents)
            yield documents, vectors.float()

    def batches(self, tokens: Tokens) -> Iterator[tuple[IntArray, Batch | Packed]]:
        """Yield the indices of the documents of a batch and, on the device, this process's shard of the batch."""
        pad = self.model.text.pad
        if not self.packed:
            for documents in reading_order(tokens.lengths, BATCH_SIZE * self.n_shards):
                yield documents, to_device(collate(tokens, None, self.shard(documents), pad), self.device)
            return
        resident = DeviceDocuments(tokens, None, pad, self.device)
        on_gpu = self.device.type == "cuda"
        size, budget = (0, BATCH_TOKENS) if on_gpu else (BATCH_SIZE, 0)
        for documents in reading_order(tokens.lengths, size * self.n_shards, budget * self.n_shards):
            shard = self.shard(documents)
            yield documents, resident.packed(move(torch.from_numpy(shard), self.device), resident.size(shard))

    @property
    def n_shards(self) -> int:
        """The number of processes that share each batch; a subclass may split batches, see `shard` and `gather`."""
        return 1

    def shard(self, documents: IntArray) -> IntArray:
        """The documents of a batch that this process reads: all of them."""
        return documents

    def gather(self, rows: Tensor, documents: IntArray) -> Tensor:
        """The rows of all documents of a batch, given the rows of this process's shard."""
        return rows


def _to_matrix(result: Sequence[Tensor], labels: int) -> Matrix:
    scores = result[0].float().cpu().numpy()
    return scores if len(result) == 1 else top_k_matrix(scores, result[1].cpu().numpy(), labels)


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # each backend raises its own type
        reason = str(error).split("\n")[0].split(". ")[0][:200]
        raise ConfigError(
            f"the device is '{name}', which cannot be used here ({reason}); expected auto, cpu, or cuda with a GPU"
        ) from None
    return device
