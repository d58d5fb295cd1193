"""Linear: a linear support vector machine a label on TF-IDF of words and word pairs.

No paper's: the baseline that every paper should have. The machines are fitted by scikit-learn; predicting needs none.

With more than 10,000 labels each machine is fitted against a sample of the documents without its label, and only its
larger weights are kept, as in DiSMEC (Babbar and Schölkopf, WSDM 2017).
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array, csc_array, csr_array
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.batches import collate, reading_order
from hill.data.tokens import Tokens, tokenize
from hill.encoders.base import UNLIMITED
from hill.encoders.tfidf import Bag, count_documents
from hill.errors import ConfigError, DataError, need
from hill.models.base import HTCModel, ModelConfig, NgramContributions, total
from hill.settings import check_at_least, check_one_of
from hill.taxonomy import Taxonomy
from hill.types import MANY_LABELS, Batch, BoolArray, FloatArray, IntArray, Output

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


DRAWN = 1_000
"""Most documents near a label, and most of the others, that its machine is fitted against."""


class Drawn(NamedTuple):
    """The documents for the machine of a label, those that have it first, and how much each counts."""

    places: IntArray
    gold: BoolArray
    weight: FloatArray


def separate(
    features: csr_array[Any], gold: BoolArray, c: float, balance: bool, seed: int, weight: FloatArray | None = None
) -> Any:
    """The machine of one label; where the dual problem does not converge, which balance may cause, the primal's."""
    svm, errors = (need(f"sklearn.{part}", "sklearn", "the linear model") for part in ("svm", "exceptions"))
    machine = svm.LinearSVC(C=c, class_weight="balanced" if balance else None, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ConvergenceWarning)
        machine.fit(features, gold, weight)
    solved = machine.n_iter_ < machine.max_iter
    return machine if solved else machine.set_params(dual=False).fit(features, gold, weight)


def draw_documents(labels: csc_array[Any], edges: IntArray, seed: int) -> Iterator[Drawn]:
    """For each label its documents, and some of those without it, which count for all of them.

    Labels are (documents, L), edges rows (child, parent). Documents with a parent of the label, which are hard to tell
    from its own, and all others are drawn from separately, at most `DRAWN` of each.
    """
    draw, count = np.random.default_rng(seed), labels.shape[0]
    order = np.argsort(edges[:, 0], kind="stable")
    starts = np.searchsorted(edges[order, 0], np.arange(labels.shape[1] + 1))
    for label in range(labels.shape[1]):
        own = _documents(labels, label)
        above = [_documents(labels, parent) for parent in edges[order[starts[label] : starts[label + 1]], 1]]
        near = np.setdiff1d(np.concatenate([*above, own[:0]]), own)
        taken = draw.choice(near, DRAWN, replace=False) if len(near) > DRAWN else near
        others = count - len(own) - len(near)
        drawn = _draw_others(draw, np.concatenate([own, near]), count)
        sizes = len(own), len(taken), len(drawn)
        shares = [whole / max(size, 1) for whole, size in zip((len(own), len(near), others), sizes, strict=True)]
        places = np.concatenate([own, taken, drawn]).astype(np.int64)
        yield Drawn(places, np.arange(len(places)) < len(own), np.repeat(shares, sizes))


def _documents(labels: csc_array[Any], label: int) -> IntArray:
    found: IntArray = labels.indices[labels.indptr[label] : labels.indptr[label + 1]].astype(np.int64)
    return found


def _draw_others(draw: np.random.Generator, known: IntArray, count: int) -> IntArray:
    """Documents of so many that are none of the known ones: some, drawn, or all where they are few."""
    if len(known) > count // 2 or count <= 2 * DRAWN:
        others = np.setdiff1d(np.arange(count), known)
        return others if len(others) <= DRAWN else draw.choice(others, DRAWN, replace=False)
    drawn = np.unique(draw.integers(0, count, DRAWN))
    return np.setdiff1d(drawn, known)


BATCH = 64


NGRAMS_FILE = "ngrams.json"


MOST_WEIGHTS = 4_000_000_000


SMALL = 0.01
"""Weights of very many labels that are smaller than this are left out."""


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Settings of the linear model."""

    TEXTS: ClassVar[tuple[str, ...]] = ("words",)

    text: str = "words"
    """Kind of text encoder: words learned from the training documents."""
    loss: str = "bce"
    """How margins become scores: bce: each for itself, margin 0 is 0.5; softmax, conditional-softmax: among others."""
    features: int = 200_000
    """Most n-grams: those that the most training documents have."""
    ngrams: int = 2
    """1 for words, 2 for words and pairs of words."""
    min_count: int = 2
    """How many training documents must have an n-gram; where none is in so many, all are features."""
    c: float = 1.0
    """C of the support vector machines: how much an error costs, measured by the width of the margin."""
    balance: bool = False
    """Whether the errors of all documents with a label cost as much as those of all without it."""
    vocabulary: int = 200_000
    """Most words."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(str(self.ngrams), ("1", "2"), "model.ngrams")
        check_at_least(self.vocabulary, 3, "model.vocabulary")
        for name in ("features", "min_count"):
            check_at_least(getattr(self, name), 1, f"model.{name}")
        if not self.c > 0:
            raise ConfigError(f"model.c is {self.c:g}; expected a number above 0")
        if self.adjust:
            raise ConfigError(
                f"model.adjust is {self.adjust:g}, but the linear model has a loss of its own; set it to 0"
            )


class Linear(HTCModel):
    """Margins as logits; fitted label by label, each against all others.

    One machine after the other: liblinear has one random state for all threads, so that machines fitted side by side
    would come out differently each time.
    """

    Config: ClassVar[type[ModelConfig]] = LinearConfig
    closed: ClassVar[bool] = True
    config: LinearConfig
    text: Bag
    head: Any
    """The weights of n-grams: an embedding bag, or with very many labels a sparse head."""

    def __init__(self, text: Bag, taxonomy: Taxonomy, config: LinearConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        ngrams, labels = assets[NGRAMS_FILE], len(taxonomy)
        text.set_features(torch.tensor(ngrams["keys"]), torch.tensor(ngrams["counts"]), ngrams["documents"])
        self._edges = taxonomy.edge_array
        self.head = SparseHead(text.width, labels) if labels > MANY_LABELS else _dense_head(text.width, labels)
        self.bias = nn.Parameter(torch.zeros(labels))

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: LinearConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The n-grams that are features, counted over whole texts, beside what every model knows."""
        tokens = tokenize(documents.texts, tokenizer, UNLIMITED)
        bag = Bag(tokenizer.get_vocab_size(), config.ngrams > 1)
        keys, counts = count_documents(bag.ngrams(batch.ids, batch.mask) for _, batch in _read(tokens))
        if not len(keys):
            raise DataError("no training document has a word; expected texts")
        kept = _choose(counts, config)
        known = super().prepare(documents, taxonomy, config, tokenizer)
        ngrams = {"documents": len(documents), "keys": keys[kept].tolist(), "counts": counts[kept].tolist()}
        return known | {NGRAMS_FILE: ngrams}

    def forward(self, batch: Batch) -> Output:
        """Margins (B, L) of a batch; with labels the loss of the config, which `fit` does not look at."""
        places, values = self.text.sparse(batch.ids, batch.mask)
        if isinstance(self.head, SparseHead):
            logits = self.head(places, values) + self.bias
        else:
            logits = self.head(places, per_sample_weights=values) + self.bias
        if batch.labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, batch.labels)})

    def weights_of(self, features: Tensor, labels: Tensor) -> Tensor:
        """The weights of these features for these labels: (features, labels)."""
        if isinstance(self.head, SparseHead):
            rows = self.head.matrix[features.cpu().numpy()][:, labels.cpu().numpy()]
            return torch.from_numpy(rows.toarray()).to(self.bias)
        found: Tensor = self.head.weight[features][:, labels]
        return found

    def ngram_contributions(self, batch: Batch, labels: Tensor) -> NgramContributions:
        """Return weight × TF-IDF of each n-gram of a batch of one document, for these labels.

        Per token, the value of an n-gram is shared equally between its occurrences, and between the tokens of a pair.
        """
        ngrams = self.text.ngrams(batch.ids, batch.mask)[0]  # (M): all tokens, then all pairs
        place = torch.searchsorted(self.text.keys, ngrams).clamp(max=self.text.width - 1)
        known = self.text.keys[place] == ngrams
        features, index, counts = torch.unique(place[known], return_inverse=True, return_counts=True)
        values = self.weights_of(features, labels).T.double() * self.text(batch.ids, batch.mask)[0, features].double()
        occurrences = values.new_zeros(len(labels), len(ngrams))
        occurrences[:, known] = (values / counts)[:, index]
        tokens, pairs = occurrences.split([batch.ids.shape[1], len(ngrams) - batch.ids.shape[1]], dim=1)
        if self.text.pairs:
            tokens = tokens + (F.pad(pairs, (0, 1)) + F.pad(pairs, (1, 0))) / 2
        return NgramContributions(self.text.keys[features], values, tokens, self.bias[labels].double())

    @torch.no_grad()
    def fit(self, tokens: Tokens, labels: csr_array[Any], seed: int) -> Iterator[tuple[int, int]]:
        """Fit one machine a label, yielding how many are done; the margin of a label that none or all have is ∓1."""
        need("sklearn", "sklearn", "the linear model")
        features, columns = self._features(tokens), labels.tocsc()
        if isinstance(self.head, SparseHead):
            yield from self._fit_sparse(self.head, features, columns, seed)
            return
        for label in range(labels.shape[1]):
            gold = columns[:, [label]].toarray()[:, 0] > 0
            if gold.all() or not gold.any():
                self.head.weight[:, label], self.bias[label] = 0.0, 1.0 if gold.all() else -1.0
            else:
                machine = separate(features, gold, self.config.c, self.config.balance, seed)
                self.head.weight[:, label] = torch.from_numpy(machine.coef_[0]).to(self.head.weight)
                self.bias[label] = float(machine.intercept_[0])
            yield label + 1, labels.shape[1]

    def _fit_sparse(
        self, head: SparseHead, features: csr_array[Any], columns: csc_array[Any], seed: int
    ) -> Iterator[tuple[int, int]]:
        """The same on a sample of the documents for each label, keeping the larger weights."""
        count, kept = columns.shape[1], []
        for label, drawn in enumerate(draw_documents(columns, self._edges, seed)):
            if drawn.gold.all() or not drawn.gold.any():
                self.bias[label] = 1.0 if drawn.gold.all() else -1.0
            else:
                fit = features[drawn.places], drawn.gold, self.config.c, self.config.balance, seed, drawn.weight
                machine = separate(*fit)
                large = np.flatnonzero(np.abs(machine.coef_[0]) >= SMALL).astype(np.int32)
                kept.append((large, np.full_like(large, label), machine.coef_[0][large].astype(np.float32)))
                self.bias[label] = float(machine.intercept_[0])
            yield label + 1, count
        if kept:
            rows, labels, weights = (np.concatenate(part) for part in zip(*kept, strict=True))
            head.set(csr_array(coo_array((weights, (rows, labels)), shape=head.shape)))

    def _features(self, tokens: Tokens) -> csr_array[Any]:
        """TF-IDF of all documents: (documents, D)."""
        found, device = [], self.bias.device
        for documents, batch in _read(tokens):
            places, values = (part.cpu() for part in self.text.sparse(batch.ids.to(device), batch.mask.to(device)))
            row, column = values.nonzero(as_tuple=True)
            found.append((documents[row.numpy()], places[row, column].numpy(), values[row, column].double().numpy()))
        rows, columns, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
        index = rows.astype(np.int32), columns.astype(np.int32)  # liblinear takes no others
        return csr_array((numbers, index), shape=(len(tokens), self.text.width))


def _dense_head(features: int, labels: int) -> nn.EmbeddingBag:
    if features * labels > MOST_WEIGHTS:
        raise ConfigError(
            f"{features:,} features of {labels:,} labels are {features * labels:,} weights, "
            f"expected at most {MOST_WEIGHTS:,}; set model.features={MOST_WEIGHTS // labels}"
        )
    return nn.EmbeddingBag.from_pretrained(torch.zeros(features, labels), freeze=False, mode="sum")


def _read(tokens: Tokens) -> Iterator[tuple[IntArray, Batch]]:
    for documents in reading_order(tokens.lengths, BATCH):
        yield documents, collate(tokens, None, documents, 0)


def _choose(counts: Tensor, config: LinearConfig) -> Tensor:
    """Which n-grams are features: places in the counts, sorted."""
    enough = (counts >= config.min_count).nonzero()[:, 0]
    enough = enough if len(enough) else torch.arange(len(counts))
    most = counts[enough].argsort(descending=True, stable=True)[: config.features]
    return enough[most].sort().values
