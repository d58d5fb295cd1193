"""What all models share: settings, the contract `HTCModel`, parts of the HiAGM family, and building text encoders."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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
from hill.encoders.tfidf import Bag, choose_characters, split_unknown_words
from hill.encoders.transformer import empty_encoder, load_pretrained
from hill.errors import ConfigError
from hill.models.layers import (
    ConditionalSoftmax,
    all_gather,
    is_label_list,
    level_softmax,
    level_softmax_loss,
    to_indicator,
    zlpr_loss,
)
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.types import AnyBatch, Batch, IntArray, Output

LOSSES = ("bce", "zlpr", "softmax", "conditional-softmax")
POOLINGS = ("auto", "cls", "mean", "last")
COUNTS_FILE = "label_counts.json"
MAX_WIDTH = 1_000_000
MAX_LAYERS = 100


@dataclass(frozen=True)
class ModelConfig:
    """Settings of every model."""

    TEXTS: ClassVar[tuple[str, ...]] = ("transformer",)
    REMOVED: ClassVar[dict[str, Any]] = {}
    """Settings of earlier versions, with the value that means "not used", or None if it only mattered in training."""

    text: str = "transformer"
    """Kind of text encoder: transformer; rcnn or words if the model has that version."""
    encoder: str = "minilm"
    """The transformer: minilm, mpnet, a folder, or a name on the model hub."""
    pooling: str = "auto"
    """The vector of a text: cls, the state of the first token; last, that of the last token; mean, the mean over all
    tokens; auto: as the encoder was trained."""
    dropout: float = 0.1
    """Dropout on the text vector and in the projector."""
    loss: str = "bce"
    """bce as in the paper; zlpr: a ranking loss, often better with few labels per document; softmax: one per level, for
    documents with a single path; conditional-softmax: one over the children of each label."""
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


class Axis(StrEnum):
    """What an axis of a weight counts, and how a warm start for another taxonomy fills it for new labels."""

    LABEL = "L"
    """Labels, or labels times a width. A new label starts as the mean of its known siblings, else of its parents."""
    ZERO_LABEL = "Z"
    """Labels, or labels times a width, that other labels read. A new label starts at 0: at first it changes nothing."""
    FRESH_LABEL = "K"
    """Labels. A new label keeps the values that the new model was initialised with."""
    EDGE = "E"
    """Edges of `taxonomy.edge_array`. A new edge keeps its initial value."""
    DISTANCE = "D"
    """Distances between labels, from 1 on."""
    FIXED = "-"
    """The same for every taxonomy, such as the width of the text vector."""


class NgramContributions(NamedTuple):
    """What the G n-grams of a document with T tokens add to the logits of K labels."""

    names: list[str]
    """(G)"""
    values: Tensor
    """(K, G); with the bias they add up to the logits."""
    token_values: Tensor
    """The same per token (K, T)."""
    bias: Tensor
    """(K), the logits of an empty text."""


class HTCModel(nn.Module):
    """The contract of all models: a batch of tokens in, an `Output` out, with a loss if the batch has labels."""

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    has_solver: ClassVar[bool] = False
    """Whether `fit` trains the model, instead of gradient steps."""
    steps_are_equal: ClassVar[bool] = True
    """Whether all training steps compute the same, so that a GPU can record one and replay it."""
    uses_label_lists: bool = False
    """Whether training batches have label lists (B, M), padded with L, instead of targets (B, L)."""
    text: TextEncoder

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: Any, assets: Mapping[str, Any]) -> None:
        super().__init__()
        self.text = text
        self.config = config
        self.assets = dict(assets)
        for level, rows in enumerate(taxonomy.levels):
            self.register_buffer(f"level{level}", torch.from_numpy(rows.copy()), persistent=False)
        self._depth = len(taxonomy.levels)
        self.conditional_softmax = None
        if config.loss == "conditional-softmax":
            child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
            counts = torch.tensor(self.assets[COUNTS_FILE])
            self.conditional_softmax = ConditionalSoftmax(self.levels, child, parent, counts, config.adjust)

    @classmethod
    def prepare(cls, documents: Documents, taxonomy: Taxonomy, config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        """Compute the assets of a model from the training documents: JSON documents by file name.

        They are saved with the model and passed to its constructor, in training and when it is loaded.
        """
        return {COUNTS_FILE: documents.labels.sum(axis=0).tolist()}

    @classmethod
    def adapt_assets(
        cls, assets: Mapping[str, Any], old_config: Any, config: Any, source: IntArray, reordered: bool
    ) -> dict[str, Any]:
        """Assets for a warm start that follow from those of the trained model instead of `prepare`.

        Label i was `source[i]`, or is new if that is -1. If `reordered`, only the order of the labels has changed.
        """
        return {}

    def start(self) -> None:
        """Initialise weights of a new model that depend on the text encoder; called once, before training."""

    def start_added(self, rows: IntArray) -> None:
        """Set the weights of labels that a warm start has added, where they are not to start as their siblings."""

    @property
    def levels(self) -> list[Tensor]:
        """The labels of each level of the taxonomy."""
        return [self.get_buffer(f"level{level}") for level in range(self._depth)]

    @property
    def vector_only(self) -> bool:
        """Whether the model needs only one vector per document; if so, it can have a head start."""
        return False

    @property
    def axes(self) -> dict[str, str]:
        """The weights whose shape depends on the taxonomy, by name: one letter of `Axis` per axis of the weight."""
        return {"head.weight": "L-", "head.bias": "L"}

    def checked_axes(self, taxonomy: Taxonomy) -> dict[str, list[Axis]]:
        """The axes of every saved weight; raises `ValueError` if `axes` does not fit the weights of the model."""
        shapes = {name: tuple(weight.shape) for name, weight in self.state_dict().items()}
        if unknown := self.axes.keys() - shapes.keys():
            raise ValueError(f"{type(self).__name__}.axes names {sorted(unknown)}, which are not weights of the model")
        units = dict.fromkeys("LZK", len(taxonomy)) | {"E": max(taxonomy.edges, 1)}  # sizes are multiples of these
        checked = {}
        for name, shape in shapes.items():
            letters = self.axes.get(name, "-" * len(shape))
            checked[name] = [Axis(letter) for letter in letters]
            sizes = zip(letters, shape, strict=False)
            if len(letters) != len(shape) or any(size % units.get(letter, 1) for letter, size in sizes):
                raise ValueError(
                    f"{type(self).__name__}.axes is '{letters}' for '{name}', but its shape is {shape} with "
                    f"{len(taxonomy)} labels and {taxonomy.edges} edges"
                )
        return checked

    @abstractmethod
    def forward(self, batch: AnyBatch) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels; only a `VectorModel` reads vectors."""

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The classification loss of the config, over the whole batch also if several processes share it."""
        labels = to_indicator(labels, logits.shape[1]) if is_label_list(labels) else labels
        logits, labels = all_gather(logits), all_gather(labels)
        if self.conditional_softmax is not None:
            return self.conditional_softmax.loss(logits, labels)
        if self.config.loss == "softmax":
            return level_softmax_loss(logits, labels, self.levels)
        if self.config.loss == "zlpr":
            return zlpr_loss(logits, labels)
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())

    def scores(self, logits: Tensor) -> Tensor:
        """Convert logits (B, L) to scores between 0 and 1 (B, L)."""
        if self.conditional_softmax is not None:
            return self.conditional_softmax.scores(logits)
        return level_softmax(logits, self.levels) if self.config.loss == "softmax" else logits.float().sigmoid()

    def top_k(self, batch: AnyBatch, k: int) -> tuple[Tensor, Tensor]:
        """The k highest scores of each document and their labels: (B, k) each, the highest first."""
        scores = self.scores(self(batch).logits)
        top = scores.topk(min(k, scores.shape[1]), dim=1)
        return top.values, top.indices

    def branch_logits(self, batch: Batch, labels: Tensor) -> dict[str, Tensor] | None:
        """Split the logits of a batch of one document into additive parts by name, for these labels: (K) each.

        None if the model has no such parts.
        """
        return None

    def ngram_contributions(self, batch: Batch, labels: Tensor) -> NgramContributions | None:
        """Return what the n-grams of a batch of one document add to these labels; None if the model uses none."""
        return None

    def words_parts(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """JSON and arrays from which `hill.export.runtime.WordsClassifier` predicts without torch; None: it cannot."""
        return None

    def fit(self, tokens: Tokens, labels: csr_array[Any], seed: int) -> Iterator[tuple[int, int]]:
        """Train a model that has a solver; yields how much is done of how much."""
        raise NotImplementedError


class VectorModel(HTCModel):
    """A model that needs only one vector per document: structure and head can be trained on vectors alone."""

    @property
    def vector_only(self) -> bool:
        """Whether the model needs only one vector per document."""
        return True

    def forward(self, batch: AnyBatch) -> Output:
        """Encode the texts, then classify their vectors in fp32: casting the weights would cost more than it saves."""
        text = self.text.read(batch).float()
        with torch.autocast(text.device.type, enabled=False):
            return self.classify(text, batch.labels)

    @abstractmethod
    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors of documents (B, D) to logits (B, L), with a loss if labels are given."""

    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the weights of the head that read the text vector, if it has any: weight (L, D), bias (L)."""


def total(logits: Tensor, parts: dict[str, Tensor]) -> Output:
    """An output whose loss is the sum of these losses."""
    return Output(logits, torch.stack(list(parts.values())).sum(), parts)


# The HiAGM family


@dataclass(frozen=True)
class TextConfig(ModelConfig):
    """Settings of models that exist with a TextRCNN and with a transformer."""

    TEXTS: ClassVar[tuple[str, ...]] = ("transformer", "rcnn")
    REMOVED: ClassVar[dict[str, Any]] = {"word_count": None, "word_dropout": None, "gru_layers": 1, "top": 1}

    text: str = "transformer"
    """Kind of text encoder: transformer, or rcnn with words learned from the training documents."""
    vectors: str = ""
    """rcnn: a file of word vectors, one word and its numbers per line (GloVe, word2vec); else they are random."""
    vocabulary: int = 50_000
    """rcnn: maximum number of words."""
    word_width: int = 300
    """rcnn: width of word vectors."""
    gru_width: int = 64
    """rcnn: width of the GRU per direction."""
    filters: int = 100
    """rcnn: filters of each of the kernels 2, 3 and 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("word_width", "gru_width", "filters"):
            within(getattr(self, name), 1, MAX_WIDTH, f"model.{name}")
        check_at_least(self.vocabulary, 3, "model.vocabulary")


@dataclass(frozen=True)
class FamilyConfig(TextConfig):
    """Settings of HiAGM and of the models that build on its code."""

    REMOVED: ClassVar[dict[str, Any]] = {**TextConfig.REMOVED, "logit_dropout": None}

    recursive: float = 1e-6
    """Weight of the recursive regularisation, which pulls the head's row of a label to that of its parent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.recursive, 0, "model.recursive")


GCN_AXES = {"up": "E", "down": "E", "gate_bias.0": "L-", "gate_bias.1": "L-", "bias.0": "L-", "bias.1": "L-"}
"""`HTCModel.axes` of `LabelGCN`."""
LSTM_AXES = {"up.weight": "E", "down.weight": "E"}
"""`HTCModel.axes` of `TreeLSTM`."""


class FamilyHead(nn.Linear):
    """A linear head (B, D) to (B, L) with HiAGM's regularisation along the edges of the taxonomy.

    The released code also applies dropout 0.5 to the logits.
    """

    child: Tensor
    parent: Tensor

    def __init__(self, width: int, taxonomy: Taxonomy, config: FamilyConfig) -> None:
        super().__init__(width, len(taxonomy))
        self.recursive = config.recursive
        for name, ends in zip(("child", "parent"), taxonomy.edge_array.T, strict=True):
            self.register_buffer(name, torch.from_numpy(ends.copy()), persistent=False)

    def regularisation(self) -> dict[str, Tensor]:
        """The weighted sum over edges of ½‖w_parent - w_child‖², as a named loss; empty if its weight is 0."""
        if not self.recursive:
            return {}
        difference = self.weight[self.parent] - self.weight[self.child]
        return {"recursive": self.recursive * difference.square().sum() / 2}


def child_priors(taxonomy: Taxonomy, counts: Sequence[int]) -> Tensor:
    """P(child | parent) of each edge of `taxonomy.edge_array`, from the number of documents per label: (E).

    Documents of a child are also documents of its parent: N(parent, child) = N(child). As in the released code of
    HiAGM, it is divided by the sum over the parent's children, not by N(parent); uniform if they have no documents.
    """
    child, parent = taxonomy.edge_array.T
    number = np.asarray(counts, dtype=np.float64)[child]
    sums, siblings = (np.bincount(parent, weights, minlength=len(taxonomy))[parent] for weights in (number, None))
    return torch.from_numpy(np.where(sums > 0, number / np.maximum(sums, 1), 1 / siblings)).float()


def reorder_leaves(tree: Mapping[str, Any], source: IntArray) -> dict[str, Any]:
    """A saved coding tree whose leaf i was leaf `source[i]`."""
    leaves, *above = tree["parents"]
    return {"parents": [np.asarray(leaves)[source].tolist(), *above]}


# Text encoders


def new_text_encoder(config: Any, texts: Sequence[str]) -> tuple[TextEncoder, Tokenizer]:
    """A pretrained transformer, or a new encoder with a vocabulary learned from these texts; with its tokenizer."""
    if config.text == "transformer":
        pretrained = load_pretrained(config.encoder)
        pooling = pretrained.pooling if config.pooling == "auto" else config.pooling
        return Transformer(pretrained.encoder, pooling, config.dropout), pretrained.tokenizer
    if config.text == "words":
        tokenizer = learn_words(texts, config.vocabulary, min_count=1)
        if choose_characters(config.characters, texts):
            tokenizer = split_unknown_words(tokenizer)
        return _word_encoder(config, tokenizer), tokenizer
    vectors = read_vectors(Path(config.vectors)) if config.vectors else {}
    tokenizer = learn_words(texts, config.vocabulary, MIN_WORD_COUNT, list(vectors))
    text: Any = _word_encoder(config, tokenizer)
    if vectors:
        set_vectors(text.words.weight, tokenizer, vectors)
    return text, tokenizer


def empty_text_encoder(config: ModelConfig, folder: Path, tokenizer: Tokenizer, pooling: str) -> TextEncoder:
    """The encoder of a saved model, before its weights are loaded."""
    if config.text == "transformer":
        return Transformer(empty_encoder(folder / "encoder"), pooling, config.dropout)
    return _word_encoder(config, tokenizer)


def copy_text_encoder(old: TextEncoder, config: ModelConfig, tokenizer: Tokenizer) -> TextEncoder:
    """A copy of a trained encoder, which has this tokenizer, with the dropout rates of this config."""
    if isinstance(old, Transformer):
        pooling = old.pooling if config.pooling == "auto" else config.pooling
        return Transformer(copy.deepcopy(old.encoder), pooling, config.dropout)
    text = _word_encoder(config, tokenizer)
    try:
        text.load_state_dict(old.state_dict())
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:200]
        raise ConfigError(f"the text encoder differs from that of the old model: {detail}") from None
    return text


def _word_encoder(config: Any, tokenizer: Tokenizer) -> TextEncoder:
    if config.text == "words":
        return Bag(tokenizer, pairs=config.ngrams > 1)
    return RCNN(tokenizer.get_vocab_size(), config.word_width, config.gru_width, config.filters, config.dropout)
