"""A model as ONNX can hold it: only predicting, of any batch size, from operations that a graph has."""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hill.models import HTCModel
from hill.nn import Transformer
from hill.types import Batch

ROOMS = ("hill.models", "hill.nn")


class Scores(nn.Module):
    """Token ids and mask (B, T) to scores (B, L): all that a model does to predict, in a copy on the CPU."""

    def __init__(self, model: HTCModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).float().cpu().eval()
        if isinstance(self.model.text, Transformer):
            encoder: Any = self.model.text.encoder
            encoder.set_attn_implementation("eager")  # matrix products, which ONNX Runtime knows how to speed up

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, T) and (B, T) to (B, L)."""
        with Rewritten():
            return self.model.scores(self.model(Batch(ids, mask)).logits)


class Rewritten(TorchFunctionMode):
    """Two operations that graphs lack, or that ONNX Runtime computes wrongly, written with others."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called in the place of every function of torch."""
        written: dict[Any, Callable[..., Any]] = {torch.searchsorted: search, Tensor.index_add: add_rows}
        return written.get(func, func)(*args, **(kwargs or {}))


def search(breaks: Tensor, values: Tensor) -> Tensor:
    """How many of the sorted breaks (n) are below each value, found by halving: ONNX has no search in sorted values."""
    steps = len(breaks).bit_length()
    padded = F.pad(breaks, (0, 2**steps - 1 - len(breaks)), value=torch.inf)
    place = torch.zeros_like(values, dtype=torch.int64)
    for step in reversed(range(steps)):
        beyond = place + 2**step
        place = torch.where(padded[beyond - 1] < values, beyond, place)
    return place


def add_rows(sums: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    """`sums.index_add(dim, index, rows)` as a product with a matrix of zeros and ones.

    In a graph it would be ScatterND, which several threads of ONNX Runtime add up at once without waiting for each
    other, so that some rows get lost.
    """
    if not len(index):
        return sums
    belongs = torch.arange(sums.shape[dim])[:, None] == index  # (sums, rows)
    moved = rows.movedim(dim, 0)
    added = belongs.to(rows.dtype) @ moved.flatten(1)
    return sums + added.reshape(sums.shape[dim], *moved.shape[1:]).movedim(0, dim)


@contextmanager
def any_batch() -> Iterator[None]:
    """While a model is traced, `len` of a tensor stays open: Python's own would fix the batch at the traced size.

    The exporter sees that, and starts over in a way that takes twice the time.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(ROOMS)]
    for module in modules:
        vars(module)["len"] = _length
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["len"]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) else len(value)
