"""TextRCNN, with a tokenizer of words learned from the training documents and optional pretrained word vectors.

Lai et al., Recurrent Convolutional Neural Networks for Text Classification, AAAI 2015, in the form of HiAGM's code.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hill.encoders.base import TextEncoder
from hill.errors import ConfigError
from hill.io import error_reason

PAD, UNKNOWN = "[PAD]", "[UNK]"
MIN_WORD_COUNT = 2
"""Words that occur less often in the training documents are unknown, unless they have a word vector."""
KERNELS = (2, 3, 4)
WORD_DROPOUT = 0.5


def learn_words(texts: Sequence[str], size: int, min_count: int, extra: Sequence[str] = ()) -> Tokenizer:
    """Make a tokenizer of at most `size` lower-case words: those that occur `min_count` times, then extra ones."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=min_count, special_tokens=[PAD, UNKNOWN], show_progress=False
    )
    learned = _word_tokenizer({PAD: 0, UNKNOWN: 1})
    learned.train_from_iterator(texts, trainer, len(texts))
    vocabulary = learned.get_vocab()
    words = list(dict.fromkeys([*sorted(vocabulary, key=vocabulary.__getitem__), *extra]))[:size]
    return _word_tokenizer({word: index for index, word in enumerate(words)})


def _word_tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True)
    return tokenizer


def read_vectors(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Read word vectors in the text format of GloVe and word2vec: a word and its numbers per line."""
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    width = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                word, *values = line.rstrip().split(" ")
                if number == 1 and len(values) == 1:
                    continue  # the header of word2vec: number of words, width
                place = f"line {number} of '{file}'"
                if not values:
                    raise ConfigError(f"{place} has a word without numbers; expected word vectors")
                width = width or len(values)
                if len(values) != width:
                    raise ConfigError(f"{place} has {len(values)} numbers, the first one {width}")
                try:
                    vectors[word] = np.array(values, dtype=np.float32)
                except ValueError:
                    raise ConfigError(f"{place} is not a word and its numbers, separated by blanks") from None
                if not np.isfinite(vectors[word]).all():
                    raise ConfigError(
                        f"{place} has a number that is infinite or not a number; correct it or remove the line"
                    )
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the name is invalid, or the file is not UTF-8
        raise ConfigError(f"cannot read word vectors '{file}': {error_reason(error)}; give a UTF-8 text file") from None
    if not vectors:
        raise ConfigError(f"'{file}' has no word vectors; expected a word and its numbers per line")
    return vectors


@torch.no_grad()
def set_vectors(weight: Tensor, tokenizer: Tokenizer, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
    """Set the rows of an embedding (words, W) whose words have a vector."""
    width = len(next(iter(vectors.values()), ()))
    if width != weight.shape[1]:
        raise ConfigError(f"the word vectors have {width} numbers; set model.word_width={width}")
    for word, row in tokenizer.get_vocab().items():
        if word in vectors:
            weight[row] = torch.from_numpy(vectors[word])


class RCNN(TextEncoder):
    """Word vectors, a bidirectional GRU, convolutions over its states, and the maximum over time: D = 3 · filters.

    As in HiAGM's code: dropout 0.5 on the word vectors, dropout 0.1 on the GRU's states, convolutions padded by k // 2.
    Different: values of a convolution beyond the end of a document are ignored, so padding changes nothing.
    """

    def __init__(
        self, words: int, word_width: int = 300, gru_width: int = 64, filters: int = 100, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, word_width, padding_idx=0)
        nn.init.uniform_(self.words.weight, -0.25, 0.25)
        with torch.no_grad():
            self.words.weight[0] = 0.0
        self.word_dropout = nn.Dropout(WORD_DROPOUT)
        self.gru = nn.GRU(word_width, gru_width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.convolutions = nn.ModuleList(nn.Conv1d(2 * gru_width, filters, k, padding=k // 2) for k in KERNELS)
        self.width, self.state_width = len(KERNELS) * filters, 2 * gru_width

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Word ids and mask (B, T) to vectors (B, D)."""
        states = self.states(ids, mask).transpose(1, 2)  # (B, S, T)
        vectors = []
        for kernel, convolution in zip(KERNELS, self.convolutions, strict=True):
            values = convolution(states).relu()  # (B, filters, positions)
            positions = mask.sum(dim=1) + 2 * (kernel // 2) - kernel + 1  # (B)
            inside = torch.arange(values.shape[2], device=values.device) < positions.view(-1, 1, 1)
            vectors.append((values * inside).max(dim=2).values)
        return torch.cat(vectors, dim=1)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The GRU's state at every word, 0 beyond the end of a document: (B, T, S)."""
        vectors = self.word_dropout(self.words(ids))
        dropped: Tensor = self.dropout(self.recurrent(vectors, mask.sum(dim=1).clamp(min=1)))
        return dropped * mask.unsqueeze(2)

    def recurrent(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """The GRU over word vectors (B, T, W) of documents of these lengths (B): (B, T, S)."""
        if vectors.is_cuda:
            packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=vectors.shape[1])[0]
        # On a CPU, gradients of a packed sequence take time quadratic in T, so each direction runs on padded documents;
        # the second one on reversed ones.
        places = torch.arange(vectors.shape[1], device=vectors.device)
        reverse = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)[:, :, None]
        onward, backward = self.gru.all_weights
        first = self._direction(vectors, onward)
        second = self._direction(vectors.take_along_dim(reverse, dim=1), backward)
        return torch.cat([first, second.take_along_dim(reverse, dim=1)], dim=2)

    def _direction(self, vectors: Tensor, weights: list[nn.Parameter]) -> Tensor:
        """One direction of the GRU over word vectors (B, T, W): (B, T, S / 2)."""
        start = vectors.new_zeros(1, len(vectors), self.gru.hidden_size)
        states: Tensor = torch.gru(vectors, start, tuple(weights), True, 1, 0.0, self.training, False, True)[0]
        return states
