"""Linear: a linear support vector machine a label on TF-IDF of words and word pairs.

No paper's: the baseline that every paper should have. The machines are fitted by scikit-learn; predicting needs none.

With more than 10,000 labels each machine is fitted against a sample of the documents without its label, and only its
larger weights are kept, as in DiSMEC (Babbar and Schölkopf, WSDM 2017).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import coo_array, csc_array, csr_array
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.batches import collate, reading_order
from hill.data.tokens import Tokens, tokenize
from hill.errors import ConfigError, DataError
from hill.extras import need
from hill.models.base import HTCModel, ModelConfig, total
from hill.models.machines import draw_documents, separate
from hill.nn.bag import Bag, count_documents
from hill.nn.sparsehead import SparseHead
from hill.nn.text import UNLIMITED
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.types import MANY_LABELS, Batch, IntArray, Output

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
        one_of(str(self.ngrams), ("1", "2"), "model.ngrams")
        at_least(self.vocabulary, 3, "model.vocabulary")
        for name in ("features", "min_count"):
            at_least(getattr(self, name), 1, f"model.{name}")
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
        text.know(torch.tensor(ngrams["keys"]), torch.tensor(ngrams["counts"]), ngrams["documents"])
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
