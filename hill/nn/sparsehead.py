"""A linear head with few weights a label: a sparse matrix, where features times labels would not fit into memory."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

NAMES = ("starts", "labels", "weights")


class SparseHead(nn.Module):
    """Sparse features of documents to logits. Row i of the weights (features, L) is that of feature i.

    It computes on the CPU, wherever its weights are.
    """

    starts: Tensor
    labels: Tensor
    weights: Tensor

    def __init__(self, features: int, labels: int) -> None:
        super().__init__()
        self.shape = features, labels
        self._matrix: csr_array[Any] | None = None
        self.register_buffer("starts", torch.zeros(features + 1, dtype=torch.int64))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int32))
        self.register_buffer("weights", torch.empty(0))

    def set(self, weights: csr_array[Any]) -> None:
        """Take these weights (features, L)."""
        device = self.weights.device
        found = (weights.indptr.astype(np.int64), weights.indices.astype(np.int32), weights.data.astype(np.float32))
        for name, values in zip(NAMES, found, strict=True):
            self.register_buffer(name, torch.from_numpy(values).to(device))
        self._matrix = None

    @property
    def matrix(self) -> csr_array[Any]:
        """All weights: (features, L)."""
        if self._matrix is None:
            starts, labels, weights = (getattr(self, name).cpu().numpy() for name in NAMES)
            self._matrix = csr_array((weights, labels, starts), shape=self.shape)
        return self._matrix

    def forward(self, places: Tensor, values: Tensor) -> Tensor:
        """Features and their values (B, M) to logits (B, L)."""
        documents, width = places.shape
        starts = np.arange(0, documents * width + 1, width)
        parts = values.flatten().cpu().numpy(), places.flatten().cpu().numpy(), starts
        read = csr_array(parts, shape=(documents, self.shape[0]))
        return torch.from_numpy((read @ self.matrix).toarray()).to(values)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights that are loaded may be of any number."""
        for name in NAMES:
            if prefix + name in state:
                self.register_buffer(name, torch.empty_like(state[prefix + name], device=self.weights.device))
        self._matrix = None
        super()._load_from_state_dict(state, prefix, *rest)
