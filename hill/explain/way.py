"""The straight way from a masked text to the text, in the space of word vectors, and the slope of logits along it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.errors import ConfigError
from hill.explain.words import Reading
from hill.models import HTCModel
from hill.nn import RCNN, Transformer
from hill.types import Batch, FloatArray, IntArray

ALONE = RLock()
"""Held while a model is not as it was, so that explanations do not restore each other's state."""
BATCH_TOKENS = 4_096
NEUTRAL = ("[MASK]", "<mask>", "[PAD]", "<pad>")
"""Tokens that say nothing, best first; where a tokenizer has none of them, the baseline is zero."""


@dataclass(frozen=True)
class Way:
    """The straight way from a baseline to a text: the word vectors where it starts, and those it adds (1, T, D)."""

    model: HTCModel
    batch: Batch
    start: Tensor
    added: Tensor

    def slopes(self, places: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """At places from 0 to 1 (S), logits of labels (K, S) and what each token adds to their slope (K, S, T)."""
        size = max(1, BATCH_TOKENS // self.batch.ids.shape[1])
        parts = [self._slopes(torch.from_numpy(part), rows) for part in _chunks(places, size)]
        logits, slopes = (torch.cat(found, dim=1).double().cpu().numpy() for found in zip(*parts, strict=True))
        return logits, slopes

    def _slopes(self, places: Tensor, rows: IntArray) -> tuple[Tensor, Tensor]:
        share = places.to(self.start).view(-1, 1, 1)
        with still(self.model):
            points = (self.start + share * self.added).requires_grad_()  # (S, T, D)
            logits = self._read(points)[:, torch.from_numpy(rows)]  # (S, K)
            slopes = [
                (torch.autograd.grad(column.sum(), points, retain_graph=True)[0] * self.added).sum(dim=2)
                for column in logits.unbind(dim=1)
            ]
        return logits.detach().T, torch.stack(slopes)

    def _read(self, points: Tensor) -> Tensor:
        """The logits of word vectors: (S, T, D) to (S, L)."""
        thread = get_ident()  # others may predict with the same model meanwhile
        hook = word_vectors(self.model).register_forward_hook(lambda *_: points if get_ident() == thread else None)
        try:
            ids, mask = (part.expand(len(points), -1) for part in (self.batch.ids, self.batch.mask))
            logits: Tensor = self.model(Batch(ids, mask)).logits
        finally:
            hook.remove()
        return logits


def _chunks(places: FloatArray, size: int) -> Iterator[FloatArray]:
    return (places[start : start + size] for start in range(0, len(places), size))


@contextmanager
def still(model: HTCModel) -> Iterator[None]:
    """No dropout, full precision, gradients of inputs alone, wherever one comes from; then the model is as it was."""
    weights = list(model.parameters())
    with ALONE:
        modes, learned = (
            [(part, part.training) for part in model.modules()],
            [weight.requires_grad for weight in weights],
        )
        model.eval().requires_grad_(False)
        try:
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                torch.autocast(weights[0].device.type, enabled=False),
                torch.backends.cudnn.flags(enabled=False),  # its GRU has no backward pass outside of training
            ):
                yield
        finally:
            for part, training in modes:
                part.training = training
            for weight, learns in zip(weights, learned, strict=True):
                weight.requires_grad = learns


def word_vectors(model: HTCModel) -> nn.Module:
    """The part of a model that gives tokens their vectors."""
    text: Any = model.text
    if isinstance(text, Transformer):
        found: nn.Module = text.encoder.get_input_embeddings()  # type: ignore[operator]
        return found
    if isinstance(text, RCNN):
        return text.words
    raise ConfigError(f"{type(text).__name__} gives words no vectors; expected a transformer or rcnn as text encoder")


def neutral(tokenizer: Tokenizer) -> str | None:
    """The token that stands for nothing, if there is one."""
    return next((token for token in NEUTRAL if tokenizer.token_to_id(token) is not None), None)


@torch.no_grad()
def find_way(model: HTCModel, tokenizer: Tokenizer, reading: Reading) -> Way:
    """From the masked text to the text."""
    batch = reading.batch(model.text.pad, next(model.parameters()).device)
    words, token = word_vectors(model), tokenizer.token_to_id(neutral(tokenizer) or "")
    end = words(batch.ids)  # (1, T, D)
    nothing = torch.zeros_like(end) if token is None else words(torch.full_like(batch.ids, token))
    framing = torch.from_numpy(reading.special).to(end.device)
    added = (end - nothing) * ~framing[None, :, None] if len(framing) else torch.zeros_like(end)
    return Way(model, batch, end - added, added)
