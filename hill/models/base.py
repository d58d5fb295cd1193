"""The text encoder and tokenizer of a model: started for a training, or empty for weights that were saved."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import Tokens
from hill.encoders import RCNN, TextEncoder, Transformer
from hill.encoders.rcnn import MIN_WORD_COUNT, learn_words, read_vectors, set_vectors
from hill.encoders.tfidf import Bag
from hill.encoders.transformer import empty_encoder, load_pretrained
from hill.errors import ConfigError
from hill.models.layers import (
    ConditionalSoftmax,
    all_gather,
    is_label_list,
    level_softmax,
    level_softmax_loss,
    to_indicator,
)
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.types import Batch, IntArray, Output, Packed

LOSSES = ("bce", "softmax", "conditional-softmax")


POOLINGS = ("auto", "cls", "mean")


COUNTS_FILE = "label_counts.json"


WIDEST = 1_000_000
"""Largest width of a layer."""


MOST_LAYERS = 100


@dataclass(frozen=True)
class ModelConfig:
    """Settings of every model."""

    TEXTS: ClassVar[tuple[str, ...]] = ("transformer",)

    text: str = "transformer"
    """Kind of text encoder: transformer; rcnn or words where the model has that version."""
    encoder: str = "minilm"
    """The transformer: minilm, a folder, or a name on the model hub."""
    pooling: str = "auto"
    """One vector of a text: cls, mean, or auto for what the encoder was trained with."""
    dropout: float = 0.1
    """Dropout on the text's vector and in the projector."""
    loss: str = "bce"
    """bce as in the paper; softmax: one a level, for documents with a single path; conditional-softmax: one over the
    children of each label."""
    adjust: float = 0.0
    """conditional-softmax: strength τ of the logit adjustment, which favours rare labels; 1 as in its paper."""

    def __post_init__(self) -> None:
        check_one_of(self.text, self.TEXTS, "model.text")
        check_one_of(self.pooling, POOLINGS, "model.pooling")
        check_one_of(self.loss, LOSSES, "model.loss")
        within(self.dropout, 0, 1, "model.dropout")
        check_at_least(self.adjust, 0, "model.adjust")
        if self.adjust and self.loss != "conditional-softmax":
            raise ConfigError(
                f"model.adjust is {self.adjust:g}, but model.loss is '{self.loss}', which has no adjustment; "
                "set model.loss=conditional-softmax, or model.adjust=0"
            )


class NgramContributions(NamedTuple):
    """What the G n-grams of a document with T tokens add to the logits of K labels."""

    keys: Tensor
    """(G), as in `hill.encoders.tfidf.Bag`."""
    values: Tensor
    """(K, G); with the bias they add up to the logits."""
    token_values: Tensor
    """The same per token (K, T)."""
    bias: Tensor
    """(K), the logits of an empty text."""


class HTCModel(nn.Module):
    """The contract: a batch of tokens in, an `Output` out, with a loss exactly when labels are given."""

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    closed: ClassVar[bool] = False
    """Fitted at once by `fit`, not step by step."""
    stage: str = ""
    """The one of `stages` under way; none in a training of one stage, where all losses count."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Parts of a pretrained text encoder that the model calls by themselves."""
    text: TextEncoder

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: Any, assets: Mapping[str, Any]) -> None:
        super().__init__()
        self.text = text
        self.config = config
        self.assets = dict(assets)
        for level, rows in enumerate(taxonomy.levels):
            self.register_buffer(f"level{level}", torch.from_numpy(rows.copy()), persistent=False)
        self._depth = len(taxonomy.levels)
        self.siblings = self._group_siblings(taxonomy) if config.loss == "conditional-softmax" else None

    def _group_siblings(self, taxonomy: Taxonomy) -> ConditionalSoftmax:
        child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
        return ConditionalSoftmax(
            self.levels, child, parent, torch.tensor(self.assets[COUNTS_FILE]), self.config.adjust
        )

    @classmethod
    def prepare(cls, documents: Documents, taxonomy: Taxonomy, config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        """What the model knows of the training documents beside its weights: JSON documents by file name.

        They are saved with the model and given to its constructor, now and whenever it is loaded.
        """
        return {COUNTS_FILE: documents.labels.sum(axis=0).tolist()}

    @classmethod
    def reorder_assets(
        cls, assets: Mapping[str, Any], old_config: Any, config: Any, source: IntArray
    ) -> dict[str, Any]:
        """Assets of a trained model for the same labels in another order, for a warm start; label i was `source[i]`.

        Only assets that `prepare` would build differently because the order of the labels changed.
        """
        return {}

    def start(self) -> None:
        """What a new model takes from its text encoder, once, before it is trained."""

    @property
    def levels(self) -> list[Tensor]:
        """The labels of each level of the taxonomy."""
        return [self.get_buffer(f"level{level}") for level in range(self._depth)]

    @property
    def by_vector(self) -> bool:
        """Whether a document's vector is enough; if so, batches may be packed, and there can be a head start."""
        return False

    @property
    def listed(self) -> bool:
        """Whether the model learns from label lists (B, M), filled up with L, in place of targets (B, L)."""
        return False

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of a training of two: the loss that alone counts in the first, and in the second; none if not."""
        return ()

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy, by name, and a letter for each of their axes, for a warm start.

        L: labels, or labels times a width; a new one starts as its parents do. Z: labels of which the others hear, new
        ones 0, so that they change nothing at first. K: labels, new ones as the model itself starts them. E: edges of
        `taxonomy.edge_array`. D: distances from 1 on. -: an axis that is the same for every taxonomy.
        """
        return {"head.weight": "L-", "head.bias": "L"}

    @abstractmethod
    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels."""

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The classification loss of the config, over all documents of a batch that several processes share."""
        labels = to_indicator(labels, logits.shape[1]) if is_label_list(labels) else labels
        logits, labels = all_gather(logits), all_gather(labels)
        if self.siblings is not None:
            return self.siblings.loss(logits, labels)
        if self.config.loss == "softmax":
            return level_softmax_loss(logits, labels, self.levels)
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())

    def scores(self, logits: Tensor) -> Tensor:
        """Logits as scores between 0 and 1: (B, L) to (B, L)."""
        if self.siblings is not None:
            return self.siblings.scores(logits)
        return level_softmax(logits, self.levels) if self.config.loss == "softmax" else logits.float().sigmoid()

    def best(self, batch: Batch | Packed, count: int) -> tuple[Tensor, Tensor]:
        """The highest scores of each document and the labels they are of: (B, count) each, the best first."""
        scores = self.scores(self(batch).logits)
        found = scores.topk(min(count, scores.shape[1]), dim=1)
        return found.values, found.indices

    def branch_logits(self, batch: Batch, labels: Tensor) -> dict[str, Tensor] | None:
        """Split the logits of a batch of one document into additive parts by name, for these labels: (K) each.

        None if the model has no such parts.
        """
        return None

    def ngram_contributions(self, batch: Batch, labels: Tensor) -> NgramContributions | None:
        """Return what the n-grams of a batch of one document add to these labels; None if the model uses none."""
        return None

    def fit(self, tokens: Tokens, labels: csr_array[Any], seed: int) -> Iterator[tuple[int, int]]:
        """For a closed model: fit the weights, yielding how much is done of how much."""
        raise NotImplementedError


class VectorModel(HTCModel):
    """A model that needs no more of a document than its vector: structure and head can be fitted on vectors alone."""

    @property
    def by_vector(self) -> bool:
        """Whether a document's vector is enough."""
        return True

    def forward(self, batch: Batch | Packed) -> Output:
        """Encode the texts, then classify their vectors, in fp32: so little work is not worth the copies of weights."""
        text = self.text.read(batch).float()
        with torch.autocast(text.device.type, enabled=False):
            return self.classify(text, batch.labels)

    @abstractmethod
    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors of documents (B, D) to logits (B, L), with a loss if labels are given."""

    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the part of the head that reads the text's vector, where there is one: weight (L, D), bias (L)."""


def total(logits: Tensor, parts: dict[str, Tensor]) -> Output:
    """Logits with the sum of these losses."""
    return Output(logits, torch.stack(list(parts.values())).sum(), parts)


@dataclass(frozen=True)
class TextConfig(ModelConfig):
    """Settings of the models that exist with a TextRCNN and with a transformer."""

    TEXTS: ClassVar[tuple[str, ...]] = ("transformer", "rcnn")

    text: str = "transformer"
    """Kind of text encoder: transformer, or rcnn with words learned from the training documents."""
    vectors: str = ""
    """rcnn: a file of word vectors, a word and its numbers a line (GloVe, word2vec); else they start at random."""
    vocabulary: int = 50_000
    """rcnn: most words."""
    word_width: int = 300
    """rcnn: width of a word's vector."""
    gru_width: int = 64
    """rcnn: width of the GRU, each direction."""
    filters: int = 100
    """rcnn: filters of each of the kernels 2, 3 and 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("word_width", "gru_width", "filters"):
            within(getattr(self, name), 1, WIDEST, f"model.{name}")
        check_at_least(self.vocabulary, 3, "model.vocabulary")


@dataclass(frozen=True)
class FamilyConfig(TextConfig):
    """Settings that HiAGM and the models after it have too."""

    recursive: float = 1e-6
    """Weight of the recursive regularisation, which draws a label's row of the head to that of its parent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.recursive, 0, "model.recursive")


GCN_AXES = {
    "up": "E",
    "down": "E",
    **{f"{bias}.{direction}": "L-" for bias in ("gate_bias", "bias") for direction in (0, 1)},
}


LSTM_AXES = {"up.weight": "E", "down.weight": "E"}


class FamilyHead(nn.Linear):
    """A linear head (B, D) to (B, L) with HiAGM's regularisation along the edges of the taxonomy.

    The released code also applies dropout 0.5 to the logits.
    """

    child: Tensor
    parent: Tensor

    def __init__(self, width: int, taxonomy: Taxonomy, config: FamilyConfig) -> None:
        super().__init__(width, len(taxonomy))
        self.recursive = config.recursive
        child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
        self.register_buffer("child", child, persistent=False)
        self.register_buffer("parent", parent, persistent=False)

    def regularisation(self) -> dict[str, Tensor]:
        """Σ over edges ½‖w_parent - w_child‖², weighted, as a part of the loss; none where the weight is 0."""
        if not self.recursive:
            return {}
        apart = self.weight[self.parent] - self.weight[self.child]
        return {"recursive": self.recursive * apart.square().sum() / 2}


def child_priors(taxonomy: Taxonomy, counts: Sequence[int]) -> Tensor:
    """P(child | parent) of each edge of `taxonomy.edge_array`, from the documents of each label: (edges).

    A document of a child is one of its parent too, so that N(parent, child) = N(child). As in the released code of
    HiAGM, it is divided by the sum over the parent's children, not by N(parent). Equal where no child has a document.
    """
    child, parent = taxonomy.edge_array.T
    number = np.asarray(counts, dtype=np.float64)[child]
    among, siblings = (np.bincount(parent, of, minlength=len(taxonomy))[parent] for of in (number, None))
    priors = np.where(among > 0, number / np.maximum(among, 1), 1 / siblings)
    return torch.from_numpy(priors).float()


def reorder_leaves(tree: Mapping[str, Any], source: IntArray) -> dict[str, Any]:
    """A saved coding tree whose leaf i was leaf `source[i]`."""
    leaves, *above = tree["parents"]
    return {"parents": [np.asarray(leaves)[source].tolist(), *above]}


def start_text(config: ModelConfig, texts: Sequence[str]) -> tuple[TextEncoder, Tokenizer]:
    """A transformer with the weights it was trained with, or an encoder whose words come from these texts."""
    if config.text == "rcnn":
        return _start_rcnn(config, texts)
    if config.text == "words":
        return _start_words(config, texts)
    pretrained = load_pretrained(config.encoder)
    pooling = pretrained.pooling if config.pooling == "auto" else config.pooling
    return Transformer(pretrained.encoder, pooling, config.dropout), pretrained.tokenizer


def empty_text(config: ModelConfig, folder: Path, tokenizer: Tokenizer, pooling: str) -> TextEncoder:
    """The encoder of a saved model, before its weights are set."""
    if config.text == "rcnn":
        return _rcnn(config, tokenizer)
    if config.text == "words":
        return _bag(config, tokenizer)
    return Transformer(empty_encoder(folder / "encoder"), pooling, config.dropout)


def copy_text(old: TextEncoder, config: ModelConfig, tokenizer: Tokenizer) -> TextEncoder:
    """An encoder with the weights of another, which has this tokenizer, and with the dropouts of this config."""
    if isinstance(old, Transformer):
        pooling = old.pooling if config.pooling == "auto" else config.pooling
        return Transformer(copy.deepcopy(old.encoder), pooling, config.dropout)
    text = _rcnn(config, tokenizer)
    try:
        text.load_state_dict(old.state_dict())
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:200]
        raise ConfigError(f"the text encoder is another than that of the old model: {detail}") from None
    return text


def _start_rcnn(config: Any, texts: Sequence[str]) -> tuple[TextEncoder, Tokenizer]:
    vectors = read_vectors(Path(config.vectors)) if config.vectors else {}
    tokenizer = learn_words(texts, config.vocabulary, MIN_WORD_COUNT, list(vectors))
    text = _rcnn(config, tokenizer)
    if vectors:
        set_vectors(text.words.weight, tokenizer, vectors)
    return text, tokenizer


def _start_words(config: Any, texts: Sequence[str]) -> tuple[TextEncoder, Tokenizer]:
    tokenizer = learn_words(texts, config.vocabulary, min_count=1)
    return _bag(config, tokenizer), tokenizer


def _bag(config: Any, tokenizer: Tokenizer) -> Bag:
    return Bag(tokenizer.get_vocab_size(), pairs=config.ngrams > 1)


def _rcnn(config: Any, tokenizer: Tokenizer) -> RCNN:
    return RCNN(tokenizer.get_vocab_size(), config.word_width, config.gru_width, config.filters, config.dropout)
