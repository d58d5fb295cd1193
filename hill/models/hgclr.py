"""HGCLR: the taxonomy makes a second view of each document, tied to the first by a contrastive loss, in training only.

Wang et al., Incorporating Hierarchy into Text Encoder: a Contrastive Learning Approach for Hierarchical Text
Classification, ACL 2022. Details follow the released code; the docstrings say where not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hill.data import Documents
from hill.data.tokens import tokenize
from hill.errors import ConfigError
from hill.models.base import HTCModel, ModelConfig, total
from hill.nn import TextEncoder, Transformer, nt_xent
from hill.nn.graphormer import Graphormer, find_paths
from hill.nn.keep import TokenKeeper
from hill.nn.text import initialise
from hill.settings import at_least
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output

TOKENS_FILE = "label_tokens.json"
LONGEST_NAME = 64
"""Tokens that are read of a label's name."""


@dataclass(frozen=True)
class HGCLRConfig(ModelConfig):
    """Settings of HGCLR."""

    layers: int = 1
    """Layers of the Graphormer over labels; HILL's comparison has 2."""
    heads: int = 0
    """Heads of the Graphormer; 0 for as many as the encoder has."""
    keep: float = 0.02
    """Threshold γ: a token is kept in the second view if it speaks for the document's labels by more than this."""
    keep_temperature: float = 1.0
    """Temperature of the Gumbel softmax that says for which labels a token speaks."""
    contrast: float = 0.1
    """Weight λ of the contrastive loss."""
    temperature: float = 1.0
    """Temperature τ of the contrastive loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.layers, 1, "model.layers")
        for name in ("heads", "keep", "contrast"):
            at_least(getattr(self, name), 0, f"model.{name}")
        for name in ("keep_temperature", "temperature"):
            at_least(getattr(self, name), 1e-3, f"model.{name}")


class HGCLR(HTCModel):
    """A linear head on the text's vector; with labels, BCE of both views + λ NT-Xent between them.

    The released code cuts documents to 510 tokens and pads all to 512; here a batch is as long as its documents. Its
    temperature is that of the Gumbel softmax alone, and one for both in the copy that HILL compares with; here there
    are two. Two classifiers that nothing reads are left out. Memory grows with the square of the number of labels.
    """

    Config: ClassVar[type[ModelConfig]] = HGCLRConfig
    parts: ClassVar[tuple[str, ...]] = ("embeddings",)
    config: HGCLRConfig
    text: Transformer
    name_ids: Tensor
    name_mask: Tensor

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HGCLRConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        width, heads = text.width, config.heads or _own_heads(self.text)
        _check_encoder(self.text, heads)
        paths = find_paths(taxonomy.edge_array, len(taxonomy))
        self.structure = Graphormer(paths, width, heads, config.layers, config.dropout)
        self.keeper = TokenKeeper(width, config.keep, config.keep_temperature)
        self.head = nn.Linear(width, len(taxonomy))
        self.view = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(width, width),
        )
        for part in (self.head, self.view):
            initialise(part)
        names = [torch.tensor(ids, dtype=torch.long) for ids in assets[TOKENS_FILE]]
        for name, rows in (("name_ids", names), ("name_mask", [torch.ones_like(ids) for ids in names])):
            self.register_buffer(name, pad_sequence(rows, batch_first=True), persistent=False)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HGCLRConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The tokens of the labels' names, beside what every model knows."""
        names = tokenize([label.name for label in taxonomy], tokenizer, LONGEST_NAME)
        known = super().prepare(documents, taxonomy, config, tokenizer)
        return known | {TOKENS_FILE: [names[row].tolist() for row in range(len(taxonomy))]}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        return super().axes | {"structure.own": "L-", "structure.between": "L-", "structure.far": "D-"}

    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of the documents as they are; only with labels is there a second view."""
        text = self.text(batch.ids, batch.mask)  # h (B, D)
        logits = self.head(text)
        if batch.labels is None:
            return Output(logits)
        kept = self.second_view(batch.ids, batch.mask, batch.labels)  # ĥ (B, D)
        parts = {
            "labels": self.label_loss(logits, batch.labels),
            "second_view": self.label_loss(self.head(kept), batch.labels),
        }
        if self.config.contrast:
            parts["contrast"] = self.config.contrast * nt_xent(
                self.view(text), self.view(kept), self.config.temperature
            )
        return total(logits, parts)

    def second_view(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """ĥ (B, D): the documents read again with only those words that speak for their labels.

        A word that is dropped leaves its place behind: positions stay, and attention still sees them.
        """
        words = self._encoder.get_input_embeddings()(ids)  # (B, T, D)
        with torch.autocast(words.device.type, enabled=False):
            keep = self.keeper(words, self.structure(self.label_vectors()), labels)  # (B, T)
        return self.read_words(words * keep.unsqueeze(2), mask)

    def label_vectors(self) -> Tensor:
        """The mean of the encoder's embeddings, positions included, over the tokens of each label's name: (L, D)."""
        tokens = self._encoder.embeddings(input_ids=self.name_ids)  # (L, T, D)
        mask = self.name_mask.unsqueeze(2)
        mean: Tensor = (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return mean

    def read_words(self, words: Tensor, mask: Tensor) -> Tensor:
        """The vectors of documents whose word embeddings are given: (B, T, D) to (B, D)."""
        states = self._encoder(inputs_embeds=words, attention_mask=mask).last_hidden_state
        vectors: Tensor = self.text.dropout(self.text.pool(states, mask))
        return vectors

    @property
    def _encoder(self) -> Any:
        return self.text.encoder


def _own_heads(text: Transformer) -> int:
    """As many heads as the encoder has, or 64 wide each, as BERT's are."""
    return int(getattr(text.encoder.config, "num_attention_heads", 0)) or max(1, text.width // 64)


def _check_encoder(text: Transformer, heads: int) -> None:
    encoder: Any = text.encoder
    if text.width % heads:
        raise ConfigError(f"model.heads is {heads}; expected a divisor of the encoder's width {text.width}")
    if not hasattr(encoder, "embeddings") or encoder.get_input_embeddings().embedding_dim != text.width:
        raise ConfigError(
            f"hgclr cannot read the embeddings of an encoder of type '{encoder.config.model_type}'; choose one whose "
            "embeddings are as wide as its states, such as BERT, RoBERTa or DistilBERT"
        )
