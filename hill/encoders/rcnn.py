"""TextRCNN: word vectors, a bidirectional GRU, convolutions over its states, the largest values over time.

Lai et al., Recurrent Convolutional Neural Networks for Text Classification, AAAI 2015, in the form that HiAGM gave it.
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
                if not values:
                    raise ConfigError(f"line {number} of '{file}' has a word without numbers; expected word vectors")
                if len(values) != width:
                    raise ConfigError(f"line {number} of '{file}' has {len(values)} numbers, the first one {width}")
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # of a name, or of bytes that are no UTF-8
        raise ConfigError(f"cannot read word vectors '{file}': {error_reason(error)}; give a UTF-8 text file") from None
    if not found:
        raise ConfigError(f"'{file}' has no word vectors; expected a word and its numbers a line")
    return found


def _vector(values: list[str], place: str) -> npt.NDArray[np.float32]:
    try:
        found = np.array(values, dtype=np.float32)
    except ValueError:
        raise ConfigError(f"{place} is not a word and its numbers, separated by blanks") from None
    if not np.isfinite(found).all():
        raise ConfigError(f"{place} has a number that is infinite or not a number; correct it or remove the line")
    return found


@torch.no_grad()
def set_vectors(weight: Tensor, tokenizer: Tokenizer, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
    """Set the rows of the words that have a vector: weight (words, W)."""
    width = len(next(iter(vectors.values()), ()))
    if width != weight.shape[1]:
        raise ConfigError(f"the word vectors have {width} numbers; set model.word_width={width}")
    for word, row in tokenizer.get_vocab().items():
        if word in vectors:
            weight[row] = torch.from_numpy(vectors[word])


KERNELS = (2, 3, 4)


class RCNN(TextEncoder):
    """Tokens are words; a document is what the filters of each kernel find most of, D = 3 · filters · top.

    As in HiAGM's code: dropout on the word vectors, dropout 0.1 on the GRU's states, convolutions padded by k // 2.
    Different: what a convolution finds beyond a document's end is left out, so that padding changes nothing.
    """

    def __init__(
        self,
        words: int,
        word_width: int = 300,
        gru_width: int = 64,
        gru_layers: int = 1,
        filters: int = 100,
        top: int = 1,
        word_dropout: float = 0.5,
        dropout: float = 0.1,
        kernels: Sequence[int] = KERNELS,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, word_width, padding_idx=0)
        nn.init.uniform_(self.words.weight, -0.25, 0.25)
        with torch.no_grad():
            self.words.weight[0] = 0.0
        self.word_dropout = nn.Dropout(word_dropout)
        self.gru = nn.GRU(word_width, gru_width, gru_layers, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.convolutions = nn.ModuleList(nn.Conv1d(2 * gru_width, filters, k, padding=k // 2) for k in kernels)
        self.top = top

    @property
    def width(self) -> int:
        """D of the vectors."""
        return sum(self._filters(layer) for layer in self.convolutions) * self.top

    @property
    def state_width(self) -> int:
        """S of the token states: both directions of the GRU."""
        return 2 * self.gru.hidden_size

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Word ids and mask (B, T) to vectors (B, D)."""
        states = self.states(ids, mask).transpose(1, 2)  # (B, S, T)
        lengths = mask.sum(dim=1)
        return torch.cat([self._find(layer, states, lengths) for layer in self.convolutions], dim=1)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The GRU's state at every word, 0 beyond a document's end: (B, T, S)."""
        vectors = self.word_dropout(self.words(ids))
        lengths = mask.sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=ids.shape[1])
        dropped: Tensor = self.dropout(states)
        return dropped * mask.unsqueeze(2)

    def _find(self, layer: nn.Module, states: Tensor, lengths: Tensor) -> Tensor:
        """The largest values of each filter over a document: (B, S, T) to (B, filters · top)."""
        found = layer(states).relu()  # (B, filters, places)
        kernel = int(layer.kernel_size[0])  # type: ignore[index]
        places = (lengths + 2 * (kernel // 2) - kernel + 1).view(-1, 1, 1)
        found = found * (torch.arange(found.shape[2], device=found.device) < places)
        short = self.top - found.shape[2]
        found = nn.functional.pad(found, (0, short)) if short > 0 else found
        return found.topk(self.top, dim=2).values.flatten(1)

    @staticmethod
    def _filters(layer: nn.Module) -> int:
        return int(layer.out_channels)  # type: ignore[arg-type]
