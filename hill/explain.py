"""Explanations: which words raise or lower the score of a label, as JSON, text for a terminal, or an HTML page.

`explain` tokenizes a text, attributes the logit of each label to the tokens, and adds up the tokens of each word.
Models that are linear in n-grams are explained exactly; all others by integrated gradients or gradient × input.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import RLock, get_ident
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hill.data.documents import as_list, text_problem
from hill.data.tokens import CHARACTERS_PER_TOKEN
from hill.encoders import RCNN, Transformer
from hill.errors import ConfigError, DataError
from hill.html import render
from hill.models import HTCModel
from hill.models.inference import SavedModel
from hill.predictor import Predictor
from hill.settings import check_one_of
from hill.sparse import to_dense
from hill.types import Batch, BoolArray, FloatArray, IntArray

METHODS = ("integrated", "gradient")
TOP = 10
"""Number of words that are shown for and against a label."""
PARTS = {
    "text": "text: the classifier on the text",
    "structure": "structure: what the coding tree adds",
    "names": "names: similarity to the name of the label",
    "linear": "linear: the linear model that is mixed in",
    "bias": "bias: what the label has for every text",
}
"""What the parts of a logit are."""
MAX_STEPS = 10_000
"""Maximum value of `steps`; each step is a forward and a backward pass through the model."""


def explain(
    classifier: Predictor, text: str, labels: Iterable[str] | None = None, method: str = "integrated", steps: int = 0
) -> Explanation:
    """Compute what each word of a text adds to the logits of labels.

    Args:
        classifier: a trained `HillClassifier`.
        text: the text.
        labels: ids, names or paths; by default the predicted labels, or the best label if none is predicted.
        method: `integrated` for integrated gradients; `gradient` for gradient × input, which is faster and less
            accurate. Models that are linear in n-grams ignore it: their explanation is exact.
        steps: number of steps of integrated gradients; 0 chooses as many as the completeness check needs.
    """
    check_one_of(method, METHODS, "method")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= MAX_STEPS:
        raise ConfigError(f"steps is {reprlib.repr(steps)}; expected a whole number from 0 to {MAX_STEPS:,}")
    if not hasattr(type(classifier), "stored"):
        raise ConfigError(
            "an exported model has no gradients, which an explanation needs; explain the model it was exported from"
        )
    if problem := text_problem(text):
        raise DataError(f"the text {problem}")
    taxonomy = classifier.taxonomy
    ((_, raw_scores),) = classifier.scores([text])
    predicted, scores = (to_dense(matrix)[0] for matrix in classifier.decoder().decide(raw_scores))
    if requested := [] if labels is None else as_list(labels, "labels"):
        rows = list(dict.fromkeys(int(taxonomy.encode([label])[0]) for label in requested))
    else:  # the predicted labels, most specific first, or else the best one
        order = np.lexsort([-scores.astype(np.float64), -taxonomy.depth])
        rows = order[predicted[order]].tolist() or [int(scores.argmax())]
    words, attribution = _attribute_words(classifier, text, np.array(rows, dtype=np.int64), method, steps)
    values, branches, ngrams = attribution.values, attribution.branches, attribution.ngrams
    explanations = [
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
        for i, row in enumerate(rows)
    ]
    name = " + ".join(_model_name(each) for each in (classifier, *classifier.members))
    return Explanation(text, name, attribution.method, attribution.baseline, tuple(words), tuple(explanations))


# Results


class Word(NamedTuple):
    """A word of the text, and its start and end in characters."""

    text: str
    start: int
    end: int


class Term(NamedTuple):
    """A word or n-gram, what it adds to a logit, and how often it occurs."""

    text: str
    value: float
    times: int

    def __str__(self) -> str:
        return f"{self.text}{f' ×{self.times}' if self.times > 1 else ''} {self.value:+.2f}"


@dataclass(frozen=True)
class LabelExplanation:
    """What the words of a text add to the logit of one label."""

    id: str
    name: str
    path: str
    score: float
    """The predicted score. It may come from a descendant, while the logit is the label's own."""
    predicted: bool
    logit: float
    baseline: float
    """The logit of the baseline. Baseline, values and gap add up to the logit."""
    values: tuple[float, ...]
    """One value per word: positive values raise the logit, negative values lower it."""
    steps: int
    branches: dict[str, float] | None = None
    """What text, structure and bias add to the logit, if the model can split it."""
    ngrams: tuple[tuple[str, float], ...] | None = None
    """What each n-gram adds, if the model uses n-grams."""

    @property
    def gap(self) -> float:
        """The part of logit - baseline that the words do not account for (completeness check)."""
        return self.logit - self.baseline - sum(self.values)

    @property
    def check(self) -> str:
        """The completeness check as text."""
        added = sum(self.values)
        return f"logit {self.logit:+.2f} = baseline {self.baseline:+.2f}, words {added:+.2f}, gap {self.gap:+.2f}"

    def strongest(self, words: Sequence[Word], top: int = TOP) -> tuple[list[Term], list[Term]]:
        """Return the words or n-grams that raise the logit most and those that lower it most; repeated words add up."""
        if self.ngrams is not None:
            terms = [Term(text, value, 1) for text, value in self.ngrams]
        else:
            sums: dict[str, Term] = {}
            for word, value in zip(words, self.values, strict=True):
                term = sums.get(text := word.text.casefold(), Term(text, 0.0, 0))
                sums[text] = Term(text, term.value + value, term.times + 1)
            terms = list(sums.values())
        terms.sort(key=lambda term: term.value)
        return [term for term in terms[::-1][:top] if term.value > 0], [term for term in terms[:top] if term.value < 0]


@dataclass(frozen=True)
class Explanation:
    """The words of a text, and what they add to each label: most specific labels first, or in the requested order."""

    input_text: str
    model: str
    method: str
    baseline: str
    """What the text is compared with: the token that replaces each token, `zero`, or `empty text`."""
    words: tuple[Word, ...]
    labels: tuple[LabelExplanation, ...]

    @property
    def read(self) -> int:
        """The number of characters that the model reads; the rest of the text is truncated."""
        return max((word.end for word in self.words), default=0)

    def word_values(self, label: LabelExplanation) -> list[tuple[int, int, float]]:
        """Return start, end and value of each word for a label."""
        return [(word.start, word.end, value) for word, value in zip(self.words, label.values, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "text": self.input_text,
            "model": self.model,
            "method": self.method,
            "baseline": self.baseline,
            "read": self.read,
            "words": [word._asdict() for word in self.words],
            "labels": [{**asdict(label), "gap": label.gap} for label in self.labels],
        }

    def text(self, top: int = TOP) -> str:
        """Return text for a terminal: each label with the words that raise or lower its logit most, and a legend."""
        lines = []
        for label in self.labels:
            own_id = "" if label.id in (label.path, label.name) else f" ({label.id})"
            lines.append(f"{label.score:.3f}  {label.path}{own_id}{'' if label.predicted else ', not predicted'}")
            lines.append(f"  {label.check}")
            if label.branches:
                lines.append(f"  branches {'  '.join(f'{name} {v:+.2f}' for name, v in label.branches.items())}")
            for side, terms in zip(("for", "against"), label.strongest(self.words, top), strict=True):
                lines.append(f"  {side:8} {',  '.join(map(str, terms)) or 'nothing'}")
        return "\n".join([*lines, "", *self.legend])

    @property
    def legend(self) -> list[str]:
        """What the numbers mean, in sentences."""
        baseline = {"zero": "embeddings of zero", "empty text": "an empty text"}.get(self.baseline)
        baseline = baseline or f"'{self.baseline}' in place of each token"
        lines = [
            "logit: the label's own score, to which the words add up. The score in front of the label is calibrated "
            "and respects the taxonomy, so it can differ from the logit's probability.",
            f"baseline: the logit with {baseline}; gap: what the words do not account for",
        ]
        if names := dict.fromkeys(name for label in self.labels for name in label.branches or {}):
            lines.append(f"branches: the parts of the logit. {'; '.join(PARTS.get(name, name) for name in names)}")
        return lines

    def html(self) -> str:
        """Return a page without network access: the text with its words in colour, for each label."""
        return render("explanation.html", explanation=self)


@dataclass
class Attribution:
    """What tokens add to the logits of K labels."""

    values: FloatArray
    """One value per label and token (K, T), or per label and word (K, W)."""
    logits: FloatArray
    baseline_logits: FloatArray
    steps: IntArray
    method: str = ""
    baseline: str = ""
    branches: dict[str, FloatArray] | None = None
    """Additive parts of the logits by name: (K) each. None if the model has no such parts."""
    ngrams: tuple[list[str], FloatArray] | None = None
    """The n-grams of the text and what they add: (K, G). None if the model does not use n-grams."""


def _attribute_words(
    classifier: Any, text: str, rows: IntArray, method: str, steps: int
) -> tuple[list[Word], Attribution]:
    """The words of a text and what they add to the logits of labels; an ensemble adds up what its members say."""
    tokenized = tokenize_words(text, classifier.stored.tokenizer, classifier.max_length)
    attribution = _attribute(classifier.stored, tokenized, rows, method, steps)
    attribution.values = tokenized.sum_words(attribution.values)
    words = [Word(text[a:b], a, b) for a, b in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), strict=True)]
    if classifier.mixture is None:
        return words, attribution
    weights, bias = classifier.mixture.label_weights[:, rows], classifier.mixture.label_bias[rows]
    parts = {"text": attribution.logits} if attribution.branches is None else attribution.branches
    branches = {name: weights[0] * part for name, part in parts.items()}
    values, logits = weights[0][:, None] * attribution.values, bias + weights[0] * attribution.logits
    baseline = bias + weights[0] * attribution.baseline_logits
    for member, weight in zip(classifier.members, weights[1:], strict=True):
        own_words, own = _attribute_words(member, text, rows, method, steps)
        words, values = _add_words(words, values, own_words, weight[:, None] * own.values)
        logits, baseline = logits + weight * own.logits, baseline + weight * own.baseline_logits
        name = _model_name(member)
        branches[name] = branches.get(name, 0.0) + weight * own.logits
    branches["bias"] = branches.get("bias", 0.0) + bias
    mixed = Attribution(values, logits, baseline, attribution.steps, attribution.method, attribution.baseline, branches)
    return words, mixed


def _model_name(classifier: Any) -> str:
    return str(classifier.stored.name)


def _add_words(
    words: list[Word], values: FloatArray, others: list[Word], other_values: FloatArray
) -> tuple[list[Word], FloatArray]:
    """Add the values (K, W) of other words to those of the words in which they begin; the rest are further words."""
    ends = {
        position: i for i, word in enumerate(words) for position in range(word.start, max(word.end, word.start + 1))
    }
    merged = list(words)
    for number, other in enumerate(others):
        i = ends.get(other.start)
        if i is None:
            i = len(merged)
            merged.append(other)
            values = np.concatenate([values, np.zeros((len(values), 1))], axis=1)
        values[:, i] += other_values[:, number]
    order = sorted(range(len(merged)), key=lambda i: (merged[i].start, merged[i].end))
    return [merged[i] for i in order], values[:, order]


def _attribute(stored: SavedModel, tokenized: TokenizedText, rows: IntArray, method: str, steps: int) -> Attribution:
    model, tokenizer, labels = stored.model, stored.tokenizer, torch.from_numpy(rows)
    batch = tokenized.batch(model)
    with torch.no_grad():
        ngrams = model.ngram_contributions(batch, labels)
    one_step = np.ones(len(rows), dtype=np.int64)
    if ngrams is not None:
        values, bias = ngrams.values.cpu().numpy(), ngrams.bias.cpu().numpy()
        token_values, logits = ngrams.token_values.cpu().numpy(), bias + values.sum(axis=1)
        return Attribution(token_values, logits, bias, one_step, "exact", "empty text", ngrams=(ngrams.names, values))
    path = EmbeddingPath(model, tokenizer, tokenized)
    if method == "integrated":
        attribution = integrated_gradients(path, rows, steps)
    else:  # gradient × input: the gradient at the text times its difference from the baseline
        logits, gradients = path.gradients(np.array([0.0, 1.0]), rows)
        attribution = Attribution(gradients[:, 1], logits[:, 1], logits[:, 0], one_step)
    with eval_mode(model), torch.no_grad():
        branches = model.branch_logits(batch, labels)
    attribution.method, attribution.baseline = method, path.neutral_token
    if branches is not None:
        attribution.branches = {name: part.double().cpu().numpy() for name, part in branches.items()}
    return attribution


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

    def batch(self, model: HTCModel) -> Batch:
        """Return a batch of this text on the model's device; a text without tokens is one masked padding token."""
        ids = torch.from_numpy(self.ids) if len(self.ids) else torch.tensor([model.text.pad])
        ids = ids[None].to(next(model.parameters()).device)
        return Batch(ids, torch.full_like(ids, len(self.ids) > 0))


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
_EVAL_LOCK = RLock()  # otherwise two explanations at the same time would restore each other's state of the model


def integrated_gradients(path: EmbeddingPath, rows: IntArray, steps: int) -> Attribution:
    """Integrate gradients by the trapezoidal rule; with 0 steps, double the steps until the completeness check holds.

    The trapezoidal rule reuses all earlier points when the steps are doubled. It is also more accurate here than
    Gauss-Legendre, since most gradients are flat at both ends of the path. Only labels that fail the check continue.
    """
    counts = np.full(len(rows), steps or FIRST_STEPS)
    logits, gradients = path.gradients(np.linspace(0, 1, counts[0] + 1), rows)
    sums = gradients.sum(axis=1) - gradients[:, [0, -1]].sum(axis=1) / 2  # (K, T)
    rise = logits[:, -1] - logits[:, 0]
    while not steps:
        gap = np.abs(rise - (sums / counts[:, None]).sum(axis=1))
        left = np.flatnonzero((gap > TOLERANCE * np.maximum(np.abs(rise), 1)) & (counts < LAST_STEPS))
        if not len(left):
            break
        count = counts[left[0]]
        sums[left] += path.gradients((np.arange(count) + 0.5) / count, rows[left])[1].sum(axis=1)
        counts[left] *= 2
    return Attribution(sums / counts[:, None], logits[:, -1], logits[:, 0], counts)


class EmbeddingPath:
    """The straight line from the token embeddings of a baseline to those of a text: (1, T, D) each.

    The baseline is the text with a neutral token in place of every token, except for special tokens.
    """

    @torch.no_grad()
    def __init__(self, model: HTCModel, tokenizer: Tokenizer, tokenized: TokenizedText) -> None:
        self._model, self._batch = model, tokenized.batch(model)
        if isinstance(model.text, Transformer):
            self._embeddings: Any = model.text.encoder.get_input_embeddings()  # type: ignore[operator]
        elif isinstance(model.text, RCNN):
            self._embeddings = model.text.words
        else:
            kind = type(model.text).__name__
            raise ConfigError(f"the text encoder {kind} has no token embeddings; expected a transformer or rcnn")
        ids = {token: id for token in NEUTRAL_TOKENS if (id := tokenizer.token_to_id(token)) is not None}
        self.neutral_token = next(iter(ids), "zero")
        text: Tensor = self._embeddings(self._batch.ids)
        neutral = self._embeddings(torch.full_like(self._batch.ids, ids[self.neutral_token])) if ids else 0
        special = torch.from_numpy(tokenized.special).to(text.device)
        self._difference = (text - neutral) * ~special[None, :, None] if len(special) else torch.zeros_like(text)
        self._baseline = text - self._difference

    def gradients(self, positions: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Compute logits (K, S), and gradients along the path per token (K, S, T), at S positions from 0 to 1."""
        size, thread = max(1, BATCH_TOKENS // self._batch.ids.shape[1]), get_ident()
        all_logits, all_gradients = [], []
        for start in range(0, len(positions), size):
            part = torch.from_numpy(positions[start : start + size]).to(self._baseline)
            ids, mask = (each.expand(len(part), -1) for each in (self._batch.ids, self._batch.mask))
            with eval_mode(self._model):
                points = (self._baseline + part.view(-1, 1, 1) * self._difference).requires_grad_()  # (S, T, D)

                def replace_embeddings(*_: Any, points: Tensor = points) -> Tensor | None:
                    return points if get_ident() == thread else None  # other threads may use the same model

                with self._embeddings.register_forward_hook(replace_embeddings):
                    logits = self._model(Batch(ids, mask)).logits[:, torch.from_numpy(rows)]  # (S, K)
                gradients = [
                    (torch.autograd.grad(column.sum(), points, retain_graph=True)[0] * self._difference).sum(dim=2)
                    for column in logits.unbind(dim=1)
                ]
            all_logits.append(logits.detach().T)
            all_gradients.append(torch.stack(gradients))
        return torch.cat(all_logits, dim=1).double().cpu().numpy(), torch.cat(
            all_gradients, dim=1
        ).double().cpu().numpy()


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
