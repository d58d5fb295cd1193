"""Linear: one linear support vector machine per label on TF-IDF vectors of words, word pairs and character n-grams.

A baseline that is from no paper. The machines are those of scikit-learn's `LinearSVC`, fitted by dual coordinate
descent (Hsieh et al., ICML 2008). Small weights are dropped, as in DiSMEC (Babbar and Schölkopf, WSDM 2017). With more
than 10,000 labels, machines are fitted on a sample of the documents without their label.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.sparse import coo_array, csc_array, csr_array, hstack, vstack
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import Tokens, tokenize
from hill.encoders.base import UNLIMITED
from hill.encoders.tfidf import MAX_CHARACTERS, Bag, choose_characters
from hill.errors import ConfigError, DataError
from hill.models.base import HTCModel, ModelConfig, NgramContributions, total
from hill.ngrams import count_documents
from hill.settings import check_at_least, check_one_of
from hill.taxonomy import Taxonomy
from hill.tree._loops import njit
from hill.types import MANY_LABELS, AnyBatch, Batch, BoolArray, FloatArray, IntArray, Output

Floats = npt.NDArray[np.float32]

NGRAMS_FILE = "ngrams.json"
MAX_TOKENS = 1_000_000
"""Tokens whose n-grams are computed at once: about 1.5 GB with character n-grams."""
MAX_NEGATIVES = 1_000
"""With very many labels: most documents of a parent, and most other documents, that a machine is fitted on."""
MIN_WEIGHT = 0.02
"""Weights below this share of the largest weight of their label are dropped. More would lower F1 on dev."""
TOLERANCE = 1e-3
"""The largest violation of the optimality conditions. Margins then differ from the optimum by less than 0.001."""
MAX_PASSES = 1_000
TINY = 1e-30
LABELS_AT_ONCE = 64
"""Labels whose documents are sampled before they are fitted."""


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Settings of the linear model."""

    TEXTS: ClassVar[tuple[str, ...]] = ("words",)

    text: str = "words"
    """Kind of text encoder: words learned from the training documents."""
    loss: str = "bce"
    """How margins become scores: bce: per label, margin 0 is 0.5; softmax, conditional-softmax: relative to others."""
    features: int = 200_000
    """Most n-grams of words, and most of characters: those in the most training documents."""
    ngrams: int = 2
    """1 for words, 2 for words and pairs of words."""
    characters: int | str = "auto"
    """Also n-grams of 2 to this many characters within words, at most 5, which help with rare and misspelled words; 0
    for none; auto: 4 if the training texts have at most 300 characters on average, or no spaces between words."""
    min_count: int = 2
    """Fewest training documents of an n-gram; if no n-gram has as many, all are features."""
    c: float = 1.0
    """C of the support vector machines: the cost of an error relative to the width of the margin."""
    balance: bool = False
    """Whether errors on all documents with a label cost as much as errors on all documents without it."""
    vocabulary: int = 200_000
    """Most words."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(str(self.ngrams), ("1", "2"), "model.ngrams")
        check_one_of(str(self.characters), ("auto", "0", *map(str, range(2, MAX_CHARACTERS + 1))), "model.characters")
        check_at_least(self.vocabulary, 3, "model.vocabulary")
        for name in ("features", "min_count"):
            check_at_least(getattr(self, name), 1, f"model.{name}")
        if not self.c > 0:
            raise ConfigError(f"model.c is {self.c:g}; expected a number above 0")
        if self.adjust:
            raise ConfigError(
                f"model.adjust is {self.adjust:g}, but the linear model has a loss of its own; set it to 0"
            )


class SparseHead(nn.Module):
    """A sparse matrix of weights (features, L), in CSR format; it computes on the CPU."""

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
        """Set the weights (features, L)."""
        for name, values in _buffers(weights).items():
            self.register_buffer(name, values.to(self.weights.device))
        self._matrix = None

    @property
    def matrix(self) -> csr_array[Any]:
        """All weights: (features, L)."""
        if self._matrix is None:
            weights, *indices = (part.cpu().numpy() for part in (self.weights, self.labels, self.starts))
            kind = np.int32 if len(weights) < 1 << 31 else np.int64  # one for both, and int32 is faster
            self._matrix = csr_array((weights, *(part.astype(kind) for part in indices)), shape=self.shape)
        return self._matrix

    def forward(self, documents: csr_array[Any]) -> Tensor:
        """Vectors (B, features) to logits (B, L)."""
        return torch.from_numpy((documents @ self.matrix).toarray()).to(self.weights.device)

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, local: Any, strict: bool, missing: Any, extra: Any, errors: list[str]
    ) -> None:
        """Load sparse weights of any number, or the dense weights of earlier versions; check the indices."""
        if prefix + "weight" in state and state[prefix + "weight"].shape == self.shape:
            dense = csr_array(state.pop(prefix + "weight").cpu().numpy())
            state.update({prefix + name: values for name, values in _buffers(dense).items()})
        for name in ("starts", "labels", "weights"):
            if prefix + name in state:
                self.register_buffer(name, torch.empty_like(state[prefix + name], device=self.weights.device))
        self._matrix = None
        super()._load_from_state_dict(state, prefix, local, strict, missing, extra, errors)
        try:
            self.matrix.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            errors.append(f"{prefix}labels: {error}")


def _buffers(weights: csr_array[Any]) -> dict[str, Tensor]:
    """The buffers of a sparse head with these weights."""
    parts = weights.indptr.astype(np.int64), weights.indices.astype(np.int32), weights.data.astype(np.float32)
    return {name: torch.from_numpy(part) for name, part in zip(("starts", "labels", "weights"), parts, strict=True)}


class Examples(NamedTuple):
    """All documents in CSR format."""

    starts: npt.NDArray[Any]
    columns: npt.NDArray[Any]
    values: Floats
    squares: FloatArray
    """The squared length of each document, with the constant feature 1 of the intercept."""


@njit
def fit_machine(
    examples: Examples, documents: IntArray, signs: FloatArray, costs: FloatArray, weights: Floats, seed: int
) -> bool:
    """Fit a support vector machine to documents with sign 1 or -1; return whether it converged.

    It minimises ½‖w‖² + Σ cost · max(0, 1 - sign · w·x)² from the weights w = 0. The last one is the intercept.
    Coordinate descent on the dual problem: passes are over documents that may be support vectors; when these have
    converged, a pass over all documents finds others.
    """
    starts, columns, values, squares = examples
    alphas, order = np.zeros(len(documents)), np.arange(len(documents))
    bias, active, goal, state = len(weights) - 1, len(documents), 0.0, seed % 2147483648
    for _ in range(MAX_PASSES):
        is_complete = active == len(documents)
        for i in range(active):  # shuffle
            state = (state * 1103515245 + 12345) % 2147483648
            j = i + (state * (active - i) >> 31)
            order[i], order[j] = order[j], order[i]
        low, high = np.inf, -np.inf
        i = 0
        while i < active:
            place = order[i]
            document, sign, shift = documents[place], signs[place], 0.5 / costs[place]
            first, last = starts[document], starts[document + 1]
            margin = np.float64(weights[bias])
            for k in range(first, last):
                margin += weights[columns[k]] * values[k]
            before = alphas[place]
            gradient = sign * margin - 1 + before * shift
            if before == 0 and gradient >= 0:  # not a support vector
                active -= 1
                order[i], order[active] = order[active], place
                continue
            low, high = min(low, gradient), max(high, gradient)
            alphas[place] = max(before - gradient / (squares[document] + shift), 0.0)
            step = sign * (alphas[place] - before)
            for k in range(first, last):
                weights[columns[k]] += step * values[k]
            weights[bias] += step
            i += 1
        if is_complete:
            if high - low <= TOLERANCE:
                return True
            goal = max((high - low) / 10, TOLERANCE)
        elif high - low <= goal:
            active = len(documents)
    return False


def fit_primal(documents: csr_array[Any], signs: FloatArray, costs: FloatArray, weights: Floats) -> None:
    """Fit the same machine by Newton's method, from these weights: slow, but it converges at any cost of errors."""
    x = csr_array(hstack([documents, csr_array(np.ones((documents.shape[0], 1)))]))

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        errors = np.maximum(1 - signs * (x @ w), 0)
        return float(w @ w / 2 + costs @ errors**2), w - 2 * (x.T @ (costs * signs * errors))

    def hessian_product(w: FloatArray, p: FloatArray) -> FloatArray:
        product: FloatArray = p + 2 * (x.T @ (costs * (signs * (x @ w) < 1) * (x @ p)))
        return product

    weights[:] = minimize(loss, weights.astype(np.float64), jac=True, hessp=hessian_product, method="trust-ncg").x


def sample_documents(
    labels: csc_array[Any], edges: IntArray, seed: int
) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
    """Yield per label its documents, a sample of the others, and weights of both that make the sample represent all.

    Labels are (documents, L), edges rows (child, parent). Documents of a parent of the label, which are hard to
    distinguish, and all others are sampled separately, at most `MAX_NEGATIVES` of each.
    """
    generator, count = np.random.default_rng(seed), labels.shape[0]
    order = np.argsort(edges[:, 0], kind="stable")
    starts = np.searchsorted(edges[order, 0], np.arange(labels.shape[1] + 1))
    columns = np.split(labels.indices.astype(np.int64), labels.indptr[1:-1])
    for label, own in enumerate(columns):
        parents = edges[order[starts[label] : starts[label + 1]], 1]
        near = np.setdiff1d(np.concatenate([own[:0], *(columns[parent] for parent in parents)]), own)
        near_sample = generator.choice(near, MAX_NEGATIVES, replace=False) if len(near) > MAX_NEGATIVES else near
        known = np.concatenate([own, near])
        if len(known) > count // 2 or count <= 2 * MAX_NEGATIVES:
            far = np.setdiff1d(np.arange(count), known)
            far = far if len(far) <= MAX_NEGATIVES else generator.choice(far, MAX_NEGATIVES, replace=False)
        else:  # without a list of all documents
            far = np.setdiff1d(np.unique(generator.integers(0, count, MAX_NEGATIVES)), known)
        shares = len(near) / max(len(near_sample), 1), (count - len(known)) / max(len(far), 1)
        weights = np.repeat([1.0, *shares], [len(own), len(near_sample), len(far)])
        yield own, np.concatenate([near_sample, far]), weights


class Linear(HTCModel):
    """Features (B, D) to margins (B, L), which are the logits; one machine per label."""

    Config: ClassVar[type[ModelConfig]] = LinearConfig
    has_solver: ClassVar[bool] = True
    config: LinearConfig
    text: Bag

    def __init__(self, text: Bag, taxonomy: Taxonomy, config: LinearConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        ngrams = assets[NGRAMS_FILE]
        keys, counts = (np.array(ngrams[name], dtype=np.int64) for name in ("keys", "counts"))
        text.set_features(keys, counts, ngrams["documents"], ngrams.get("characters", 0))
        self._edges = taxonomy.edge_array
        self.bias = nn.Parameter(torch.zeros(len(taxonomy)))
        self.head = SparseHead(text.width, len(taxonomy))

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: LinearConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The assets of every model, and the n-grams that are features, counted over whole texts."""
        tokens = tokenize(documents.texts, tokenizer, UNLIMITED)
        bag = Bag(tokenizer, config.ngrams > 1, choose_characters(config.characters, documents.texts))
        keys, counts = count_documents(_ngrams(bag, tokens))
        if not len(keys):
            raise DataError("no training document has a word; expected texts")
        frequent = np.flatnonzero(counts >= config.min_count)
        frequent = frequent if len(frequent) else np.arange(len(counts))
        best = frequent[np.argsort(-counts[frequent], kind="stable")]
        of_words = keys[best] < bag.first_characters
        chosen = np.sort(np.concatenate([best[of_words][: config.features], best[~of_words][: config.features]]))
        ngrams = {"keys": keys[chosen].tolist(), "counts": counts[chosen].tolist()}
        ngrams_file = {"documents": len(documents), "characters": bag.characters, **ngrams}
        return super().prepare(documents, taxonomy, config, tokenizer) | {NGRAMS_FILE: ngrams_file}

    def vectors(self, tokens: Tokens) -> csr_array[Any]:
        """The TF-IDF vectors of documents: (documents, D)."""
        empty = csr_array(np.zeros((0, self.text.width), dtype=np.float32))
        return csr_array(vstack([empty, *(self.text.vectors(*part) for part in _parts(tokens) if len(tokens))]))

    def count_more(self, tokens: Tokens) -> None:
        """Add these documents to those in which the n-grams that are features were counted."""
        if not len(tokens):
            return
        ngrams = self.assets[NGRAMS_FILE]
        found, counts = count_documents(_ngrams(self.text, tokens))
        features, known = self.text.find(found)
        total = np.array(ngrams["counts"], dtype=np.int64)
        total[features[known]] += counts[known]
        documents = ngrams["documents"] + len(tokens)
        self.assets[NGRAMS_FILE] = ngrams | {"counts": total.tolist(), "documents": documents}
        self.text.set_features(self.text.keys, total, documents, self.text.characters)

    def forward(self, batch: AnyBatch) -> Output:
        """Margins (B, L) of a batch; with labels also the loss of the config, which `fit` does not use."""
        assert isinstance(batch, Batch)
        logits = self.head(self.text.sparse(batch.ids, batch.mask)) + self.bias
        if batch.labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, batch.labels)})

    def ngram_contributions(self, batch: Batch, labels: Tensor) -> NgramContributions:
        """Return weight × TF-IDF of each n-gram of a batch of one document, for these labels.

        The value of an n-gram is shared equally between its occurrences, and between their first and last tokens.
        """
        document, rows = self.text.sparse(batch.ids, batch.mask), labels.cpu().numpy()
        weights = self.head.matrix[document.indices][:, rows].toarray().astype(np.float64)
        values = weights.T * document.data  # (K, G)
        ids = batch.ids.masked_fill(batch.mask == 0, self.text.pad)[0].cpu().numpy()
        ngrams = self.text.ngrams(ids, np.zeros(len(ids), dtype=np.int64))
        features, known = self.text.find(ngrams.keys)
        index = np.searchsorted(document.indices, features[known])
        shares = (values / np.bincount(index, minlength=len(document.indices)))[:, index] / 2
        token_values = np.zeros((len(rows), len(ids)))
        for tokens in (ngrams.first, ngrams.last):
            np.add.at(token_values.T, tokens[known], shares.T)
        names = self.text.names(self.text.keys[document.indices].tolist())
        parts = torch.from_numpy(values), torch.from_numpy(token_values)
        return NgramContributions(names, *parts, self.bias[labels].double())

    def words_parts(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The n-grams that are features, and their weights; None if scores are relative to other labels."""
        if self.config.loss != "bce":
            return None
        head = {name: getattr(self.head, name) for name in ("starts", "labels", "weights")}
        arrays = {name: values.detach().cpu().numpy() for name, values in (head | {"bias": self.bias}).items()}
        ngrams = self.assets[NGRAMS_FILE]
        arrays |= {name: np.array(ngrams[name], dtype=np.int64) for name in ("keys", "counts")}
        facts = {"pairs": self.text.pairs, "characters": self.text.characters, "documents": ngrams["documents"]}
        return facts, arrays

    @torch.no_grad()
    def fit(self, tokens: Tokens, labels: csr_array[Any], seed: int) -> Iterator[tuple[int, int]]:
        """Fit one machine per label, on all threads, yielding how many are done.

        A label of no or all documents gets the margin ∓1.
        """
        matrix = self.vectors(tokens)
        squares = 1 + matrix.multiply(matrix).sum(axis=1).astype(np.float64)
        examples = Examples(matrix.indptr, matrix.indices, matrix.data, squares)
        count, done, entries = labels.shape[1], 0, []
        samples = enumerate(self._samples(labels.tocsc(), seed))

        def fit_label(sample: tuple[int, tuple[IntArray, BoolArray, FloatArray]]) -> tuple[Any, ...]:
            label, (documents, gold, costs) = sample
            weights = self._fit_label(examples, documents, gold, costs, seed + label)
            large = np.flatnonzero(np.abs(weights[:-1]) >= max(MIN_WEIGHT * np.abs(weights[:-1]).max(), TINY))
            return large.astype(np.int32), np.full(len(large), label, np.int32), weights[large], float(weights[-1])

        threads = ThreadPoolExecutor(torch.get_num_threads())
        try:
            while group := list(islice(samples, LABELS_AT_ONCE)):
                for *entry, self.bias[done] in threads.map(fit_label, group):
                    entries.append(entry)
                    done += 1
                    yield done, count
        finally:
            threads.shutdown(cancel_futures=True)
        rows, columns, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
        self.head.set(csr_array(coo_array((weights, (rows, columns)), shape=self.head.shape)))

    def _samples(self, labels: csc_array[Any], seed: int) -> Iterator[tuple[IntArray, BoolArray, FloatArray]]:
        """Yield per label the documents that its machine is fitted on, which of them have it, and their weights."""
        if labels.shape[1] > MANY_LABELS:
            for own, others, weights in sample_documents(labels, self._edges, seed):
                yield np.concatenate([own, others]), np.arange(len(weights)) < len(own), weights
            return
        documents = np.arange(labels.shape[0])
        for label in range(labels.shape[1]):
            gold = np.zeros(len(documents), dtype=bool)
            gold[labels.indices[labels.indptr[label] : labels.indptr[label + 1]]] = True
            yield documents, gold, np.ones(len(documents))

    def _fit_label(
        self, examples: Examples, documents: IntArray, gold: BoolArray, costs: FloatArray, seed: int
    ) -> Floats:
        """The weights (D + 1) of one machine, the last one its intercept."""
        weights = np.zeros(self.text.width + 1, dtype=np.float32)
        if gold.all() or not gold.any():
            weights[-1] = 1 if gold.all() else -1
            return weights
        if self.config.balance:
            shares = np.bincount(gold, costs) * 2 / costs.sum()
            costs = costs / shares[gold.astype(np.int64)]
        signs, costs = np.where(gold, 1.0, -1.0), self.config.c * costs
        if not fit_machine(examples, documents, signs, costs, weights, seed):
            shape = len(examples.squares), self.text.width
            x = csr_array((examples.values, examples.columns, examples.starts), shape=shape)
            fit_primal(x[documents], signs, costs, weights)
        return weights


def _parts(tokens: Tokens) -> Iterator[tuple[npt.NDArray[Any], IntArray]]:
    """Yield the ids and starts of consecutive documents, with about `MAX_TOKENS` tokens at a time."""
    bounds = np.searchsorted(tokens.starts, np.arange(0, max(int(tokens.starts[-1]), 1), MAX_TOKENS))
    for first, last in zip(bounds, [*bounds[1:], len(tokens)], strict=True):
        starts = tokens.starts[first : last + 1]
        yield tokens.ids[starts[0] : starts[-1]], starts - starts[0]


def _ngrams(bag: Bag, tokens: Tokens) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the keys of all n-grams, and the document of each."""
    for ids, starts in _parts(tokens):
        document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        ngrams = bag.ngrams(ids, document)
        yield ngrams.keys, document[ngrams.first]
