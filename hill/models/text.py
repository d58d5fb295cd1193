"""The text encoder and tokenizer of a model: started for a training, or empty for weights that were saved."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hill.errors import ConfigError
from hill.models.base import ModelConfig
from hill.nn import RCNN, TextEncoder, Transformer
from hill.nn.bag import Bag
from hill.nn.pretrained import empty_encoder, load_pretrained
from hill.nn.words import learn_words, read_vectors, set_vectors


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
    tokenizer = learn_words(texts, config.vocabulary, config.word_count, list(vectors))
    text = _rcnn(config, tokenizer)
    if vectors:
        set_vectors(text.words.weight, tokenizer, vectors)
    return text, tokenizer


def _start_words(config: Any, texts: Sequence[str]) -> tuple[TextEncoder, Tokenizer]:
    tokenizer = learn_words(texts, config.vocabulary, least=1)
    return _bag(config, tokenizer), tokenizer


def _bag(config: Any, tokenizer: Tokenizer) -> Bag:
    return Bag(tokenizer.get_vocab_size(), pairs=config.ngrams > 1)


def _rcnn(config: Any, tokenizer: Tokenizer) -> RCNN:
    return RCNN(
        tokenizer.get_vocab_size(),
        config.word_width,
        config.gru_width,
        config.gru_layers,
        config.filters,
        config.top,
        config.word_dropout,
        config.dropout,
    )
