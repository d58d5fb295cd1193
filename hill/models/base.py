"""What every model is: a text encoder, a structure and a head, built from taxonomy, encoder and config."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import Tokens
from hill.errors import ConfigError
from hill.nn import TextEncoder, level_softmax, level_softmax_loss
from hill.nn.across import whole
from hill.nn.lists import is_listed, to_targets
from hill.nn.siblings import Siblings
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output, Packed

LOSSES = ("bce", "softmax", "conditional-softmax")
POOLINGS = ("auto", "cls", "mean")
COUNTS_FILE = "label_counts.json"


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
        one_of(self.text, self.TEXTS, "model.text")
        one_of(self.pooling, POOLINGS, "model.pooling")
        one_of(self.loss, LOSSES, "model.loss")
        at_least(self.dropout, 0, "model.dropout")
        at_least(self.adjust, 0, "model.adjust")
        if self.adjust and self.loss != "conditional-softmax":
            raise ConfigError(
                f"model.adjust is {self.adjust:g}, but model.loss is '{self.loss}', which has no adjustment; "
                "set model.loss=conditional-softmax, or model.adjust=0"
            )


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

    def _group_siblings(self, taxonomy: Taxonomy) -> Siblings:
        child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
        return Siblings(self.levels, child, parent, torch.tensor(self.assets[COUNTS_FILE]), self.config.adjust)

    @classmethod
    def prepare(cls, documents: Documents, taxonomy: Taxonomy, config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        """What the model knows of the training documents beside its weights: JSON documents by file name.

        They are saved with the model and given to its constructor, now and whenever it is loaded.
        """
        return {COUNTS_FILE: documents.labels.sum(axis=0).tolist()}

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
        labels = to_targets(labels, logits.shape[1]) if is_listed(labels) else labels
        logits, labels = whole(logits), whole(labels)
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
