"""All that a training changes: weights, optimiser, progress; and how its device computes."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hill.data.tokens import Tokens
from hill.errors import ConfigError, HillError
from hill.models import HTCModel
from hill.nn import Transformer
from hill.train.config import TrainConfig
from hill.train.optim import make_optimiser
from hill.train.ranks import Ranks, joined
from hill.train.shards import reading_shards, shard, with_room, without_weights
from hill.types import IntArray

READ_STEPS = 10
"""Steps after which a GPU is asked whether they were finite."""
MOST_SKIPPED = 20
"""Steps in a row that may be left out: more mean that no step ever will be finite again."""


@dataclass(frozen=True)
class Split:
    """Documents as a model reads them: tokens and labels (documents, L), and their ids where they are known."""

    tokens: Tokens
    labels: csr_array[Any]
    ids: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Epochs finished."""
    position: int = 0
    """Batches done of the epoch under way."""
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    """Steps that were left out because they were not finite."""


class Watch:
    """Notices steps that were not finite; the device is asked now and then, as asking waits for it."""

    def __init__(self, skip: bool, often: bool) -> None:
        self._skip = skip
        self.every = 1 if often else READ_STEPS
        self._row = 0
        self._unread: list[tuple[int, IntArray, Tensor, Tensor]] = []

    def add(self, progress: Progress, data: Split, documents: IntArray, loss: Tensor, bad: Tensor) -> None:
        """Note the step just taken on these documents."""
        self._unread.append((progress.step, documents, loss, bad))
        if len(self._unread) >= self.every:
            self.read(progress, data)

    def read(self, progress: Progress, data: Split) -> None:
        """Count the steps that were left out, or raise if none may be."""
        unread, self._unread = self._unread, []
        flags = torch.stack([bad for *_, bad in unread]).tolist() if unread else []
        for (step, documents, loss, _), flag in zip(unread, flags, strict=True):
            self._row = self._row + 1 if flag else 0
            progress.skipped += bool(flag)
            if flag and not self._skip:
                raise HillError(
                    f"step {step} is not finite (loss {loss.item():g}) on the documents {_names(data, documents)}; "
                    "lower train.lr and train.encoder_lr, set train.clip=1 or train.precision=fp32, or use --plain; or "
                    "go on without such steps with --resume --set train.skip_nonfinite=true"
                )
            if self._row == MOST_SKIPPED:
                raise HillError(
                    f"{MOST_SKIPPED} steps in a row are not finite, the last on the documents "
                    f"{_names(data, documents)}; lower train.lr and train.encoder_lr, or set train.precision=fp32"
                )


def _names(data: Split, documents: IntArray) -> str:
    return ", ".join(str(data.ids[place] if data.ids else place) for place in documents.tolist())


@dataclass
class Session:
    """A model on its device, with its optimiser and its progress."""

    model: HTCModel
    config: TrainConfig
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    ranks: Ranks = field(default_factory=joined)

    def __post_init__(self) -> None:
        if self.config.stages == "two" and not self.model.stages:
            raise ConfigError(
                "train.stages is 'two', but this model has no contrastive loss that could be trained first; "
                "set train.stages=one, or use model hill with model.contrast above 0"
            )
        self.device = self.ranks.device or self.device
        self.model.to(self.device)
        self._whole: nn.Module | None = None
        self._set_up_encoder()
        self.watch = Watch(self.config.skip_nonfinite, often=self.device.type == "cpu")
        self._make_optimiser()

    def _make_optimiser(self) -> None:
        self.optimiser = make_optimiser(self.model, self.config, self.packed and self.device.type == "cuda")

    def _set_up_encoder(self) -> None:
        model: Any = self.model
        text = model.text
        if not isinstance(text, Transformer):
            return
        on_cpu = self.device.type == "cpu" and not self.config.plain
        text.unpadded = on_cpu and not self.config.recompute and not self.sharded  # which need the encoder's own layers
        if self.packed and self.config.compile and self.ranks.count == 1:
            model.classify = torch.compile(model.classify)
        if self.packed and self.config.recompute:
            text.packed_layer = partial(checkpoint, text.packed_layer, use_reentrant=False)
        elif self.config.recompute:
            text.encoder.gradient_checkpointing_enable()  # type: ignore[operator]

    def shard(self) -> None:
        """Let ranks that are to share the text encoder do so from here on."""
        wanted, text = self.ranks.sharding, self.model.text
        if wanted is None:
            return
        if not isinstance(text, Transformer):
            raise ConfigError(
                f"accelerate is configured to use FSDP, but the text encoder is a {type(text).__name__}, which is too "
                "small to be shared; configure it without, or set model.text=transformer"
            )
        self.ranks.spread(text.encoder)
        self._whole = without_weights(text.encoder)
        shard(text.encoder, wanted, self.device, [getattr(text.encoder, part) for part in self.model.parts])
        self._set_up_encoder()
        self._make_optimiser()

    def unshard(self) -> None:
        """Let every rank hold the whole text encoder again, its weights to be set, and nothing of the optimiser."""
        if self._whole is not None:
            text: Any = self.model.text
            text.encoder, self._whole = with_room(self._whole, self.device), None
            self._make_optimiser()

    @property
    def sharded(self) -> bool:
        """Whether ranks share the text encoder: then all of them compute with it together, or none."""
        return self._whole is not None

    @property
    def bf16(self) -> bool:
        """Whether matrices are multiplied in bf16; weights stay fp32."""
        if self.config.plain or self.config.precision == "fp32":
            return False
        return self.config.precision == "bf16" or (self.device.type == "cuda" and torch.cuda.is_bf16_supported())

    @property
    def packed(self) -> bool:
        """Whether documents are read packed: on a GPU, in bf16, where the model needs no more than their vectors."""
        on_gpu = self.device.type == "cuda" and self.bf16
        return on_gpu and self.model.by_vector and self.model.text.packs and not self.sharded

    @property
    def pad(self) -> int:
        """The token id that fills up a batch."""
        return self.model.text.pad

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision where the settings and the device want it; for forward passes only."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def reading(self) -> AbstractContextManager[Any]:
        """Forward passes without gradients."""
        return reading_shards(self.model.text) if self.sharded else torch.inference_mode()

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """Where bf16 is good enough, let what is left in fp32 be multiplied in TF32, there and back."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.bf16 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
