"""Linear: one linear support vector machine per label on TF-IDF vectors of words and word pairs.

A baseline that is from no paper. scikit-learn fits the machines; prediction does not need it. With more than 10,000
labels, machines are fitted on a sample of the documents without their label, and small weights are dropped, as in
DiSMEC (Babbar and Schölkopf, WSDM 2017).
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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

NGRAMS_FILE = "ngrams.json"
BATCH_SIZE = 64
MAX_WEIGHTS = 4_000_000_000
MAX_NEGATIVES = 1_000
"""With very many labels: most documents of a parent, and most other documents, that a machine is fitted on."""
MIN_WEIGHT = 0.01
"""With very many labels, smaller weights are dropped."""


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Settings of the linear model."""

    TEXTS: ClassVar[tuple[str, ...]] = ("words",)

    text: str = "words"
    """Kind of text encoder: words learned from the training documents."""
    loss: str = "bce"
    """How margins become scores: bce: per label, margin 0 is 0.5; softmax, conditional-softmax: relative to others."""
    features: int = 200_000
    """Most n-grams: those in the most training documents."""
    ngrams: int = 2
    """1 for words, 2 for words and pairs of words."""
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
        parts = weights.indptr.astype(np.int64), weights.indices.astype(np.int32), weights.data.astype(np.float32)
        for name, values in zip(("starts", "labels", "weights"), parts, strict=True):
            self.register_buffer(name, torch.from_numpy(values).to(self.weights.device))
        self._matrix = None

    @property
    def matrix(self) -> csr_array[Any]:
        """All weights: (features, L)."""
        if self._matrix is None:
            parts = (part.cpu().numpy() for part in (self.weights, self.labels, self.starts))
            self._matrix = csr_array(tuple(parts), shape=self.shape)
        return self._matrix

    def forward(self, features: Tensor, values: Tensor) -> Tensor:
        """Features and their values (B, M) to logits (B, L)."""
        starts = np.arange(0, features.numel() + 1, features.shape[1])
        parts = values.flatten().cpu().numpy(), features.flatten().cpu().numpy(), starts
        documents = csr_array(parts, shape=(len(features), self.shape[0]))
        return torch.from_numpy((documents @ self.matrix).toarray()).to(values)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Resize the weights before they are loaded."""
        for name in ("starts", "labels", "weights"):
            if prefix + name in state:
                self.register_buffer(name, torch.empty_like(state[prefix + name], device=self.weights.device))
        self._matrix = None
        super()._load_from_state_dict(state, prefix, *rest)


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
    """Features (B, D) to margins (B, L), which are the logits; one machine per label, fitted one after the other.

    They are not fitted in parallel: liblinear has one random state for all threads, so results would vary.
    """

    Config: ClassVar[type[ModelConfig]] = LinearConfig
    has_solver: ClassVar[bool] = True
    config: LinearConfig
    text: Bag
    head: Any
    """The weights (D, L): an embedding bag, or with very many labels a sparse head."""

    def __init__(self, text: Bag, taxonomy: Taxonomy, config: LinearConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        ngrams, labels = assets[NGRAMS_FILE], len(taxonomy)
        text.set_features(torch.tensor(ngrams["keys"]), torch.tensor(ngrams["counts"]), ngrams["documents"])
        self._edges = taxonomy.edge_array
        self.bias = nn.Parameter(torch.zeros(labels))
        size = text.width * labels
        if labels > MANY_LABELS:
            self.head = SparseHead(text.width, labels)
        elif size > MAX_WEIGHTS:
            raise ConfigError(
                f"{text.width:,} features of {labels:,} labels are {size:,} weights, "
                f"expected at most {MAX_WEIGHTS:,}; set model.features={MAX_WEIGHTS // labels}"
            )
        else:
            self.head = nn.EmbeddingBag.from_pretrained(torch.zeros(text.width, labels), freeze=False, mode="sum")

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: LinearConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The assets of every model, and the n-grams that are features, counted over whole texts."""
        tokens = tokenize(documents.texts, tokenizer, UNLIMITED)
        bag = Bag(tokenizer.get_vocab_size(), config.ngrams > 1)
        keys, counts = count_documents(bag.ngrams(batch.ids, batch.mask) for _, batch in _batches(tokens))
        if not len(keys):
            raise DataError("no training document has a word; expected texts")
        frequent = (counts >= config.min_count).nonzero()[:, 0]
        frequent = frequent if len(frequent) else torch.arange(len(counts))
        best = counts[frequent].argsort(descending=True, stable=True)[: config.features]
        chosen = frequent[best].sort().values
        ngrams = {"documents": len(documents), "keys": keys[chosen].tolist(), "counts": counts[chosen].tolist()}
        return super().prepare(documents, taxonomy, config, tokenizer) | {NGRAMS_FILE: ngrams}

    def forward(self, batch: Batch) -> Output:
        """Margins (B, L) of a batch; with labels also the loss of the config, which `fit` does not use."""
        features, values = self.text.sparse(batch.ids, batch.mask)
        sparse = isinstance(self.head, SparseHead)
        weighted = self.head(features, values) if sparse else self.head(features, per_sample_weights=values)
        logits = weighted + self.bias
        if batch.labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, batch.labels)})

    def weights_of(self, features: Tensor, labels: Tensor) -> Tensor:
        """The weights of these features for these labels: (features, labels)."""
        if isinstance(self.head, SparseHead):
            rows = self.head.matrix[features.cpu().numpy()][:, labels.cpu().numpy()]
            return torch.from_numpy(rows.toarray()).to(self.bias)
        weights: Tensor = self.head.weight[features][:, labels]
        return weights

    def ngram_contributions(self, batch: Batch, labels: Tensor) -> NgramContributions:
        """Return weight × TF-IDF of each n-gram of a batch of one document, for these labels.

        Per token, the value of an n-gram is shared equally between its occurrences, and between the tokens of a pair.
        """
        ngrams = self.text.ngrams(batch.ids, batch.mask)[0]  # (M): all tokens, then all pairs
        feature = torch.searchsorted(self.text.keys, ngrams).clamp(max=self.text.width - 1)
        known = self.text.keys[feature] == ngrams
        features, index, counts = torch.unique(feature[known], return_inverse=True, return_counts=True)
        values = self.weights_of(features, labels).T.double() * self.text(batch.ids, batch.mask)[0, features].double()
        occurrences = values.new_zeros(len(labels), len(ngrams))
        occurrences[:, known] = (values / counts)[:, index]
        tokens, pairs = occurrences.split([batch.ids.shape[1], len(ngrams) - batch.ids.shape[1]], dim=1)
        if self.text.pairs:
            tokens = tokens + (F.pad(pairs, (0, 1)) + F.pad(pairs, (1, 0))) / 2
        return NgramContributions(self.text.keys[features], values, tokens, self.bias[labels].double())

    @torch.no_grad()
    def fit(self, tokens: Tokens, labels: csr_array[Any], seed: int) -> Iterator[tuple[int, int]]:
        """Fit one machine per label, yielding how many are done; a label of no or all documents gets the margin ∓1."""
        need("sklearn", "sklearn", "the linear model")
        features, columns, count, head = self._features(tokens), labels.tocsc(), labels.shape[1], self.head
        samples, entries = sample_documents(columns, self._edges, seed), []
        for label in range(count):
            if isinstance(head, SparseHead):
                own, others, weight = next(samples)
                documents, gold = np.concatenate([own, others]), np.arange(len(weight)) < len(own)
                coefficients, self.bias[label] = self._fit_machine(features[documents], gold, weight, seed)
                large = np.flatnonzero(np.abs(coefficients) >= MIN_WEIGHT).astype(np.int32)
                entries.append((large, np.full_like(large, label), coefficients[large].astype(np.float32)))
            else:
                gold = columns[:, [label]].toarray()[:, 0] > 0
                coefficients, self.bias[label] = self._fit_machine(features, gold, None, seed)
                head.weight[:, label] = torch.from_numpy(coefficients).to(head.weight)
            yield label + 1, count
        if isinstance(head, SparseHead):
            rows, label_rows, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
            head.set(csr_array(coo_array((weights, (rows, label_rows)), shape=head.shape)))

    def _fit_machine(
        self, features: csr_array[Any], gold: BoolArray, weight: FloatArray | None, seed: int
    ) -> tuple[FloatArray, float]:
        """Coefficients (D) and intercept of one machine; if the dual problem does not converge, of the primal."""
        if gold.all() or not gold.any():
            return np.zeros(features.shape[1]), 1.0 if gold.all() else -1.0
        svm, exceptions = (need(f"sklearn.{part}", "sklearn", "the linear model") for part in ("svm", "exceptions"))
        balance = "balanced" if self.config.balance else None
        machine = svm.LinearSVC(C=self.config.c, class_weight=balance, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            machine.fit(features, gold, weight)
        if machine.n_iter_ >= machine.max_iter:
            machine.set_params(dual=False).fit(features, gold, weight)
        return machine.coef_[0], float(machine.intercept_[0])

    def _features(self, tokens: Tokens) -> csr_array[Any]:
        """TF-IDF vectors of all documents: (documents, D)."""
        entries, device = [], self.bias.device
        for documents, batch in _batches(tokens):
            features, values = (part.cpu() for part in self.text.sparse(batch.ids.to(device), batch.mask.to(device)))
            row, column = values.nonzero(as_tuple=True)
            entries.append(
                (documents[row.numpy()], features[row, column].numpy(), values[row, column].double().numpy())
            )
        rows, columns, numbers = (np.concatenate(part) for part in zip(*entries, strict=True))
        index = rows.astype(np.int32), columns.astype(np.int32)  # the only type that liblinear takes
        return csr_array((numbers, index), shape=(len(tokens), self.text.width))


def _batches(tokens: Tokens) -> Iterator[tuple[IntArray, Batch]]:
    for documents in reading_order(tokens.lengths, BATCH_SIZE):
        yield documents, collate(tokens, None, documents, 0)
