"""Attribute the logits of labels to the words of a text.

`explain` tokenizes the text, attributes each logit to the tokens, and adds up the tokens of each word. Models that are
linear in n-grams are explained exactly; all others by integrated gradients or gradient × input.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock, get_ident
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data.documents import as_list, text_problem
from hill.data.tokens import CHARACTERS_PER_TOKEN
from hill.encoders import RCNN, Transformer
from hill.errors import ConfigError, DataError
from hill.explain.result import Explanation, LabelExplanation, Word
from hill.models import HTCModel
from hill.models.saved import SavedModel
from hill.predictor import Predictor
from hill.settings import check_one_of
from hill.sparse import to_dense
from hill.taxonomy import Taxonomy
from hill.types import Batch, BoolArray, FloatArray, IntArray

METHODS = ("integrated", "gradient")
MAX_STEPS = 10_000
"""Maximum value of `steps`; each step is a forward and a backward pass through the model."""


@runtime_checkable
class Explainable(Protocol):
    """A predictor with a PyTorch model, such as `HillClassifier`; exported models have none."""

    @property
    def stored(self) -> SavedModel:
        """The PyTorch model with its taxonomy, tokenizer and settings."""

    @property
    def max_length(self) -> int:
        """Maximum number of tokens per text."""


def explain(
    classifier: Predictor, text: str, labels: Iterable[str] | None = None, method: str = "integrated", steps: int = 0
) -> Explanation:
    """Compute what each word of a text adds to the logits of labels.

    Args:
        classifier: a trained `HillClassifier`.
        text: the text.
        labels: ids, names or paths; by default the predicted labels, or the best label if none is predicted.
        method: `integrated` for integrated gradients; `gradient` for gradient × input, which is faster and less
            accurate. The linear model ignores it: its explanation is exact.
        steps: number of steps of integrated gradients; 0 chooses as many as the completeness check needs.
    """
    check_one_of(method, METHODS, "method")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= MAX_STEPS:
        raise ConfigError(f"steps is {reprlib.repr(steps)}; expected a whole number from 0 to {MAX_STEPS:,}")
    if not isinstance(classifier, Explainable):
        raise ConfigError(
            "an exported model has no gradients, which an explanation needs; explain the model it was exported from"
        )
    if problem := text_problem(text):
        raise DataError(f"the text {problem}")
    taxonomy, stored = classifier.taxonomy, classifier.stored
    ((_, raw_scores),) = classifier.scores([text])
    predicted, scores = (to_dense(matrix)[0] for matrix in classifier.decoder().decide(raw_scores))
    rows = _label_rows(taxonomy, labels, scores, predicted)
    tokenized = tokenize_words(text, stored.tokenizer, classifier.max_length)
    attribution = _attribute(stored.model, stored.tokenizer, tokenized, rows, method, steps)
    values, branches, ngrams = tokenized.sum_words(attribution.values), attribution.branches, attribution.ngrams
    return Explanation(
        text,
        stored.name,
        attribution.method,
        attribution.baseline,
        tuple(Word(text[a:b], a, b) for a, b in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), strict=True)),
        tuple(
            LabelExplanation(
                taxonomy[row].id,
                taxonomy[row].name,
                taxonomy.path_name(row),
                float(scores[row]),
                bool(predicted[row]),
                logit=float(attribution.logits[i]),
                baseline=float(attribution.baseline_logits[i]),
                values=tuple(values[i].tolist()),
                steps=int(attribution.steps[i]),
                branches=None if branches is None else {name: float(part[i]) for name, part in branches.items()},
                ngrams=None if ngrams is None else tuple(zip(ngrams[0], ngrams[1][i].tolist(), strict=True)),
            )
            for i, row in enumerate(rows.tolist())
        ),
    )


def _label_rows(taxonomy: Taxonomy, labels: Iterable[str] | None, scores: FloatArray, predicted: BoolArray) -> IntArray:
    """Return the requested labels; by default the predicted ones, most specific first, or else the best one."""
    if requested := [] if labels is None else as_list(labels, "labels"):
        return np.array(list(dict.fromkeys(int(taxonomy.encode([label])[0]) for label in requested)), dtype=np.int64)
    if not predicted.any():
        return np.array([scores.argmax()])
    order = np.lexsort([-scores.astype(np.float64), -taxonomy.depth])
    return order[predicted[order]]


@dataclass(frozen=True)
class Attribution:
    """What tokens add to the logits of K labels."""

    values: FloatArray
    """Per token: (K, T)."""
    logits: FloatArray
    baseline_logits: FloatArray
    steps: IntArray
    method: str = ""
    baseline: str = ""
    branches: dict[str, FloatArray] | None = None
    """Additive parts of the logits by name: (K) each. None if the model has no such parts."""
    ngrams: tuple[list[str], FloatArray] | None = None
    """The n-grams of the text and what they add: (K, G). None if the model does not use n-grams."""


def _attribute(
    model: HTCModel, tokenizer: Tokenizer, tokenized: TokenizedText, rows: IntArray, method: str, steps: int
) -> Attribution:
    batch, labels = tokenized.batch(model.text.pad, next(model.parameters()).device), torch.from_numpy(rows)
    with torch.no_grad():
        ngrams = model.ngram_contributions(batch, labels)
    if ngrams is not None:
        values, bias = ngrams.values.cpu().numpy(), ngrams.bias.cpu().numpy()
        return Attribution(
            ngrams.token_values.cpu().numpy(),
            bias + values.sum(axis=1),
            bias,
            np.ones(len(rows), dtype=np.int64),
            "exact",
            "empty text",
            ngrams=(_ngram_names(ngrams.keys.cpu().numpy(), tokenizer), values),
        )
    path = embedding_path(model, tokenizer, tokenized)
    attribution = integrated_gradients(path, rows, steps) if method == "integrated" else gradient_x_input(path, rows)
    with eval_mode(model), torch.no_grad():
        branches = model.branch_logits(batch, labels)
    return replace(
        attribution,
        method=method,
        baseline=_neutral_token(tokenizer) or "zero",
        branches=None if branches is None else {name: part.double().cpu().numpy() for name, part in branches.items()},
    )


def _ngram_names(keys: IntArray, tokenizer: Tokenizer) -> list[str]:
    """Return the words of n-grams from their keys (see `hill.encoders.tfidf.Bag`)."""
    pairs = (divmod(key, tokenizer.get_vocab_size()) for key in keys.tolist())
    return [" ".join(str(tokenizer.id_to_token(word)) for word in pair if word) for pair in pairs]


# Tokens and words


@dataclass(frozen=True)
class TokenizedText:
    """The T tokens of a text, and the W words that they form."""

    ids: IntArray
    special: BoolArray
    """Which tokens are special tokens of the tokenizer, such as `[CLS]` (T)."""
    first_tokens: IntArray
    """The first token of each word, not counting special tokens (W)."""
    starts: IntArray
    ends: IntArray
    """Start and end of each word in the text, in characters (W)."""

    def sum_words(self, values: npt.NDArray[Any]) -> FloatArray:
        """Sum values over the tokens of each word: (K, T) to (K, W)."""
        inner = values[:, : len(self.special)][:, ~self.special].astype(np.float64)
        return np.add.reduceat(inner, self.first_tokens, axis=1) if len(self.first_tokens) else inner[:, :0]

    def batch(self, pad: int, device: torch.device) -> Batch:
        """Return a batch of this text; a text without tokens becomes one masked padding token."""
        ids = torch.from_numpy(self.ids) if len(self.ids) else torch.tensor([pad])
        mask = torch.full_like(ids, len(self.ids) > 0)
        return Batch(ids[None].to(device), mask[None].to(device))


def tokenize_words(text: str, tokenizer: Tokenizer, max_length: int) -> TokenizedText:
    """Tokenize a text as for prediction, and find the words that its tokens form."""
    tokenizer.enable_truncation(max_length)
    encoding = tokenizer.encode(text[: max_length * CHARACTERS_PER_TOKEN])
    tokenizer.no_truncation()
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[~special]
    pieces = [text[start:end] for start, end in offsets.tolist()]
    blanks = np.array([len(piece) - len(piece.lstrip()) for piece in pieces], dtype=np.int64)
    lengths = np.array([len(piece.strip()) for piece in pieces], dtype=np.int64)
    starts = np.where(lengths > 0, offsets[:, 0] + blanks, 0)  # without the blanks around a token; 0 if it is blank
    ends = starts + lengths
    word_ids = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)[~special]
    first = np.flatnonzero(np.diff(_group_tokens(starts, ends, word_ids), prepend=-1))
    return TokenizedText(
        np.array(encoding.ids, dtype=np.int64),
        special,
        first,
        starts[np.maximum(first, np.argmax(starts < ends))] if len(first) else first,
        np.maximum.reduceat(ends, first) if len(first) else first,
    )


def _group_tokens(starts: IntArray, ends: IntArray, word_ids: IntArray) -> IntArray:
    """Return the word of each token: a new word begins after a blank, or at a new word id of the tokenizer.

    A blank token belongs to the word before it. Tokens of the same character belong to the same word.
    """
    previous_end = np.maximum.accumulate(np.concatenate([[0], ends]))[:-1]
    new = (starts > previous_end) | ((np.diff(word_ids, prepend=-1) != 0) & (starts >= previous_end))
    words: IntArray = np.maximum(np.cumsum(new & (starts < ends)) - 1, 0)
    return words


# Gradients

BATCH_TOKENS = 4_096

NEUTRAL_TOKENS = ("[MASK]", "<mask>", "[PAD]", "<pad>")
"""Baseline tokens, in order of preference; the baseline is zero if a tokenizer has none of them."""

FIRST_STEPS, LAST_STEPS = 8, 256

TOLERANCE = 0.05
"""Completeness check: the gap is at most this share of what the words add, as in the paper, or this many logits."""

_EVAL_LOCK = RLock()
"""Prevents that two explanations restore each other's state of a model."""


def integrated_gradients(path: EmbeddingPath, rows: IntArray, steps: int) -> Attribution:
    """Integrate gradients by the trapezoidal rule; with 0 steps, double the steps until the completeness check holds.

    The trapezoidal rule reuses all earlier points when the steps are doubled. It is also more accurate here than
    Gauss-Legendre, since most gradients are flat at both ends of the path. Only labels that fail the check continue.
    """
    counts = np.full(len(rows), steps or FIRST_STEPS)
    logits, gradients = path.gradients(np.linspace(0, 1, counts[0] + 1), rows)
    sums = gradients.sum(axis=1) - gradients[:, [0, -1]].sum(axis=1) / 2  # (K, T)
    rise = logits[:, -1] - logits[:, 0]
    while not steps and len(left := np.flatnonzero(_incomplete(sums / counts[:, None], rise) & (counts < LAST_STEPS))):
        count = counts[left[0]]
        sums[left] += path.gradients((np.arange(count) + 0.5) / count, rows[left])[1].sum(axis=1)
        counts[left] *= 2
    return Attribution(sums / counts[:, None], logits[:, -1], logits[:, 0], counts)


def _incomplete(values: FloatArray, rise: FloatArray) -> BoolArray:
    """Return for which labels the completeness check fails: (K, T) and (K) to (K)."""
    failed: BoolArray = np.abs(rise - values.sum(axis=1)) > TOLERANCE * np.maximum(np.abs(rise), 1)
    return failed


def gradient_x_input(path: EmbeddingPath, rows: IntArray) -> Attribution:
    """Multiply the gradient at the text by its difference from the baseline."""
    logits, gradients = path.gradients(np.array([0.0, 1.0]), rows)
    return Attribution(gradients[:, 1], logits[:, 1], logits[:, 0], np.ones(len(rows), dtype=np.int64))


@dataclass(frozen=True)
class EmbeddingPath:
    """The straight line from the token embeddings of a baseline to those of a text: (1, T, D) each."""

    model: HTCModel
    batch: Batch
    baseline: Tensor
    difference: Tensor

    def gradients(self, positions: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Compute logits (K, S), and gradients along the path per token (K, S, T), at S positions from 0 to 1."""
        size = max(1, BATCH_TOKENS // self.batch.ids.shape[1])
        parts = [
            self._gradients(torch.from_numpy(positions[start : start + size]), rows)
            for start in range(0, len(positions), size)
        ]
        logits, gradients = (torch.cat(part, dim=1).double().cpu().numpy() for part in zip(*parts, strict=True))
        return logits, gradients

    def _gradients(self, positions: Tensor, rows: IntArray) -> tuple[Tensor, Tensor]:
        with eval_mode(self.model):
            points = self.baseline + positions.to(self.baseline).view(-1, 1, 1) * self.difference  # (S, T, D)
            points.requires_grad_()
            logits = self._logits(points)[:, torch.from_numpy(rows)]  # (S, K)
            gradients = [
                (torch.autograd.grad(column.sum(), points, retain_graph=True)[0] * self.difference).sum(dim=2)
                for column in logits.unbind(dim=1)
            ]
        return logits.detach().T, torch.stack(gradients)

    def _logits(self, points: Tensor) -> Tensor:
        """Run the model on given token embeddings: (S, T, D) to (S, L)."""
        thread = get_ident()  # other threads may predict with the same model
        hook = _input_embeddings(self.model).register_forward_hook(lambda *_: points if get_ident() == thread else None)
        try:
            ids, mask = (part.expand(len(points), -1) for part in (self.batch.ids, self.batch.mask))
            logits: Tensor = self.model(Batch(ids, mask)).logits
        finally:
            hook.remove()
        return logits


@torch.no_grad()
def embedding_path(model: HTCModel, tokenizer: Tokenizer, tokenized: TokenizedText) -> EmbeddingPath:
    """Return the path from the text with neutral tokens to the text; special tokens are the same in both."""
    batch = tokenized.batch(model.text.pad, next(model.parameters()).device)
    embeddings, token = _input_embeddings(model), tokenizer.token_to_id(_neutral_token(tokenizer) or "")
    text = embeddings(batch.ids)  # (1, T, D)
    neutral = torch.zeros_like(text) if token is None else embeddings(torch.full_like(batch.ids, token))
    special = torch.from_numpy(tokenized.special).to(text.device)
    difference = (text - neutral) * ~special[None, :, None] if len(special) else torch.zeros_like(text)
    return EmbeddingPath(model, batch, text - difference, difference)


def _input_embeddings(model: HTCModel) -> nn.Module:
    encoder: Any = model.text
    if isinstance(encoder, Transformer):
        embeddings: nn.Module = encoder.encoder.get_input_embeddings()  # type: ignore[operator]
        return embeddings
    if isinstance(encoder, RCNN):
        return encoder.words
    raise ConfigError(
        f"the text encoder {type(encoder).__name__} has no token embeddings; expected a transformer or rcnn"
    )


def _neutral_token(tokenizer: Tokenizer) -> str | None:
    return next((token for token in NEUTRAL_TOKENS if tokenizer.token_to_id(token) is not None), None)


@contextmanager
def eval_mode(model: HTCModel) -> Iterator[None]:
    """Disable dropout, autocast and gradients of weights, enable gradients of inputs; restore the model afterwards."""
    weights = list(model.parameters())
    with _EVAL_LOCK:
        modes = [(module, module.training) for module in model.modules()]
        trainable = [weight.requires_grad for weight in weights]
        model.eval().requires_grad_(False)
        try:
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                torch.autocast(weights[0].device.type, enabled=False),
                torch.backends.cudnn.flags(enabled=False),  # its GRU has no backward pass in eval mode
            ):
                yield
        finally:
            for module, training in modes:
                module.training = training
            for weight, requires_grad in zip(weights, trainable, strict=True):
                weight.requires_grad = requires_grad
