"""Words as tokens: a vocabulary learned from texts, and word vectors from a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from hill.errors import ConfigError

PAD, UNKNOWN = "[PAD]", "[UNK]"


def learn_words(texts: Sequence[str], size: int, least: int, known: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of lower-case words: those that occur at least so often, then known ones, up to a size."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=least, special_tokens=[PAD, UNKNOWN], show_progress=False
    )
    learned = _tokenizer({PAD: 0, UNKNOWN: 1})
    learned.train_from_iterator(texts, trainer, len(texts))
    words = sorted(learned.get_vocab().items(), key=lambda pair: pair[1])
    order = list(dict.fromkeys([word for word, _ in words] + list(known)))[:size]
    return _tokenizer({word: number for number, word in enumerate(order)})


def _tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True)
    return tokenizer


def read_vectors(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Word vectors in the text form of GloVe and word2vec: a word and its numbers a line."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    width = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                word, *values = line.rstrip().split(" ")
                if number == 1 and len(values) == 1:
                    continue  # word2vec's first line: how many words, how wide
                found[word] = _vector(values, f"line {number} of '{file}'")
                width = width or len(values)
                if len(values) != width or not width:
                    raise ConfigError(f"line {number} of '{file}' has {len(values)} numbers, the first one {width}")
    except OSError as error:
        raise ConfigError(f"cannot read word vectors '{file}': {error.strerror}") from None
    return found


def _vector(values: list[str], place: str) -> npt.NDArray[np.float32]:
    try:
        return np.array(values, dtype=np.float32)
    except ValueError:
        raise ConfigError(f"{place} is not a word and its numbers, separated by blanks") from None


@torch.no_grad()
def set_vectors(weight: Tensor, tokenizer: Tokenizer, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
    """Set the rows of the words that have a vector: weight (words, W)."""
    width = len(next(iter(vectors.values()), ()))
    if width != weight.shape[1]:
        raise ConfigError(f"the word vectors have {width} numbers; set model.word_width={width}")
    for word, row in tokenizer.get_vocab().items():
        if word in vectors:
            weight[row] = torch.from_numpy(vectors[word])
