"""The training loop, and what it consists of: the session, the optimiser, optimiser steps and the scoring of dev.

`train` is the loop: a generator of `Step` and `Epoch`. It writes no files; `hill.train.checkpoint.run` adds checkpoints
and a log. A `Session` holds model, optimiser and progress. A `StepRunner` takes optimiser steps; `GraphedSteps` replays
them as CUDA graphs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.sparse import csr_array, vstack
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hill.data.batches import DeviceDocuments, batch_labels, collate, move, to_device, training_order
from hill.data.tokens import Tokens
from hill.encoders import TextEncoder, Transformer
from hill.encoders.packed import ARCHITECTURES
from hill.errors import ConfigError, HillError
from hill.metrics import Scorer
from hill.models import HTCModel
from hill.models.inference import BATCH_SIZE, Inference
from hill.settings import Groups
from hill.sparse import Matrix
from hill.taxonomy import Taxonomy
from hill.train.config import TrainConfig
from hill.train.distributed import DistributedContext, DistributedInference, current_context
from hill.types import MANY_LABELS, AnyBatch, Encoded, IntArray

SLOWDOWN_STEPS = 10
"""Steps after which a time limit compares their time with the plan."""
CHECK_INTERVAL = 10
"""Steps between two checks of a GPU for non-finite steps: each check waits for the GPU."""
MAX_SKIPPED = 20
"""Consecutive non-finite steps after which training stops even if such steps may be skipped."""
EPSILON = 1e-8
CLIP_EPSILON = 1e-6
"""As in `clip_grads_with_norm_`."""
MANY_LABELS_EPSILON = 1e-12
"""With many labels the loss is a mean over them, so gradients of the weights of one label come near 1e-8."""

# Events


@dataclass(frozen=True)
class StageProgress:
    """How much is done of a stage before the first step, such as tokenising or the head start."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Notice:
    """A sentence for the user, such as the settings that were chosen."""

    text: str


@dataclass(frozen=True)
class Started(Notice):
    """A training starts; the sentence says what is trained and on what. Its settings are final."""

    settings: Groups


@dataclass(frozen=True)
class Resumed:
    """A training continues after this step; `damaged` says why the latest checkpoint was not used, if so."""

    step: int
    damaged: str


@dataclass(frozen=True)
class Step:
    """A step was taken. Reading the loss waits for the device: do not read it in every step."""

    step: int
    steps: int
    epoch: int
    documents: int
    rate: float
    loss: Tensor
    parts: dict[str, Tensor]
    skipped: int = 0
    """Steps so far that are known to be skipped because they were not finite."""


@dataclass(frozen=True)
class Epoch:
    """An epoch was completed and dev, if there is one, was scored."""

    epoch: int
    metrics: dict[str, Any]
    improved: bool


@dataclass(frozen=True)
class Finished:
    """Training ended: all steps are done (`steps`), the time is over (`time`), or dev does not improve (`patience`).

    Its weights are those of the best epoch, with this dev metric; None if dev was scored once at most.
    """

    reason: str
    step: int
    steps: int
    epoch: int
    best_epoch: int
    best: float | None


TrainingEvent = StageProgress | Notice | Resumed | Step | Epoch | Finished

# The loop


def train(session: Session, data: Split, dev: Split | None, taxonomy: Taxonomy) -> Iterator[Step | Epoch | Finished]:
    """Train from the current progress to the last step, or until dev has not improved for `patience` epochs.

    With a time limit, learning rates decay with the time if that runs out sooner than the steps.
    """
    config, progress, model, limit = session.config, session.progress, session.model, session.time_limit
    if model.has_solver:
        progress.epoch = 1
        yield _finish_epoch(session, dev, taxonomy)
        return
    runner = make_steps(session, data)
    per_epoch = math.ceil(math.ceil(len(data) / config.batch_size) / config.accumulate)
    total = config.steps or config.epochs * per_epoch
    n_epochs = math.ceil(total / per_epoch)
    interval = math.ceil(n_epochs / config.evaluations) if config.evaluations else 1
    patience = max(config.patience, interval)  # an epoch whose dev is not scored cannot be the best one
    is_last = progress.step >= total
    while (not is_last or progress.position) and progress.epoch - progress.best_epoch < patience:
        model.train()
        batches = training_order(len(data), config.batch_size, config.seed, progress.epoch)
        # A training that was killed after its last step, but before dev was scored, has no steps left.
        for start in () if is_last else range(progress.position, len(batches), config.accumulate):
            group = batches[start : start + config.accumulate]
            documents = np.concatenate(group)
            progress.step += 1
            rate = set_rates(
                session.optimiser, config, progress.step, total, limit.share(progress.step) if limit else 0.0
            )
            session.context.seed_step(config.seed, progress.step)
            result = runner.step(group)
            progress.position += len(group)
            session.guard.record(progress, data, documents, result)
            counts = progress.step, total, progress.epoch, len(documents)
            yield Step(*counts, rate, result.loss, result.parts, progress.skipped)
            if is_last := progress.step >= total or bool(limit and limit.share(progress.step + 1) >= 1):
                break
        session.guard.check(progress, data)
        progress.epoch, progress.position = progress.epoch + 1, 0
        if is_last or progress.epoch % interval == 0:
            yield _finish_epoch(session, dev, taxonomy)
    reason = "patience" if not is_last else "steps" if progress.step >= total else "time"
    best = progress.best if dev and len(progress.history) > 1 else None
    yield Finished(reason, progress.step, total, progress.epoch, progress.best_epoch, best)


def _finish_epoch(session: Session, dev: Split | None, taxonomy: Taxonomy) -> Epoch:
    """Score dev and record whether it is the best epoch so far; without dev, the last epoch is the best."""
    config, progress = session.config, session.progress
    metrics = score_split(session, dev, taxonomy) if dev else {}
    if config.skip_nonfinite:
        metrics["skipped"] = progress.skipped
    value = metrics.get(config.metric, float(progress.epoch))
    if not math.isfinite(value):
        raise HillError(f"dev {config.metric} is {value} after epoch {progress.epoch}; lower the learning rates")
    improved = value > progress.best
    if improved:
        progress.best, progress.best_epoch = value, progress.epoch
    progress.history.append({"epoch": progress.epoch, **{k: v for k, v in metrics.items() if k != "levels"}})
    return Epoch(progress.epoch, metrics, improved)


def score_split(session: Session, split: Split, taxonomy: Taxonomy) -> dict[str, Any]:
    """All metrics of a split, with labels chosen by `choose_labels`; computed on the main rank."""
    scorer, context = Scorer(taxonomy), session.context
    for documents, scores in session.inference.scores(split.inputs):
        if context.is_main:
            scorer.update(split.labels[documents], choose_labels(session.model, scores), scores)
    return context.broadcast_object(scorer.result() if context.is_main else {})


def choose_labels(model: HTCModel, scores: Matrix) -> Matrix:
    """Labels with a score above 0.5; with one softmax per level, the best label of each level.

    With a conditional softmax, the best path from the root down and all labels with a score above 0.25: the labels of a
    document with several paths share the probability. Decoding is tuned after training.
    """
    if model.conditional_softmax is None and model.config.loss != "softmax":
        return scores > 0.5
    if isinstance(scores, csr_array):
        parts = (scores[start : start + BATCH_SIZE].toarray() for start in range(0, scores.shape[0], BATCH_SIZE))
        return csr_array(vstack([csr_array(choose_labels(model, part)) for part in parts]))
    if model.conditional_softmax is not None:
        device = model.conditional_softmax.child.device
        return model.conditional_softmax.choose(torch.from_numpy(scores).to(device)).cpu().numpy()
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


# The state of a training


@dataclass(frozen=True)
class Split:
    """Tokens and labels (documents, L) of some documents, and their ids if they have any."""

    tokens: Tokens
    labels: csr_array[Any]
    ids: Sequence[str] = ()
    vectors: Tensor | None = None
    """The vectors (documents, D) of a frozen text encoder, on the device."""

    def take(self, documents: IntArray) -> Split:
        """The tokens and labels of these documents."""
        return Split(self.tokens.take(documents), self.labels[documents])

    @property
    def inputs(self) -> Tokens | Tensor:
        """What the model reads: vectors if there are any, else tokens."""
        return self.tokens if self.vectors is None else self.vectors

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Completed epochs."""
    position: int = 0
    """Completed batches of the current epoch."""
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    """Steps skipped because they were not finite."""


class TimeLimit:
    """The time of the steps of a training; it starts with the first call of `share`.

    If steps take longer than was planned, more time is left for what comes after them, which will take longer, too.

    Args:
        seconds: the time of the steps.
        after: the time that was planned for what comes after them.
        step_seconds: the time that was planned per step.
    """

    def __init__(self, seconds: float, after: float = 0.0, step_seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.after = after
        self.step_seconds = step_seconds
        self._start: float | None = None
        self._first = 0

    def share(self, step: int) -> float:
        """The share of the time that has passed before this step."""
        if self._start is None:
            self._start, self._first = time.monotonic(), step
        passed, done, left = time.monotonic() - self._start, step - self._first, self.seconds
        if self.step_seconds and done >= SLOWDOWN_STEPS:
            slowdown = max(passed / done / self.step_seconds, 1.0)
            left = max(self.seconds - (slowdown - 1) * self.after, self.seconds / 2)
        return passed / left


@dataclass
class Session:
    """A model on its device with its optimiser and progress."""

    model: HTCModel
    config: TrainConfig
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    context: DistributedContext = field(default_factory=current_context)
    time_limit: TimeLimit | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.device = self.context.device or self.device
        kind = Inference if self.context.world_size == 1 else DistributedInference
        self.inference = kind(self.model, self.device, config.inference_precision)
        on_cpu, text = self.device.type == "cpu", self.model.text
        if config.plain:
            text.packs = False
        packed = self.inference.packed
        if isinstance(text, Transformer) and config.recompute:
            text.recompute = packed
            if not packed:
                text.encoder.gradient_checkpointing_enable()  # type: ignore[operator]
        self.guard = NonFiniteGuard(config.skip_nonfinite, 1 if on_cpu else CHECK_INTERVAL)
        self.optimiser = make_optimiser(self.model, config, packed and not on_cpu and not self.encodes_once)

    @property
    def encodes_once(self) -> bool:
        """Whether the text encoder is frozen, so that its vectors need to be computed only once."""
        text = self.model.text
        is_frozen = not any(weight.requires_grad for weight in text.parameters())
        return self.model.vector_only and text.pretrained and is_frozen


class NonFiniteGuard:
    """Stops a training, or counts skipped steps, when losses or gradients are infinite or NaN.

    Args:
        skip: whether such steps are skipped and counted instead of raising.
        interval: check after this many steps; each check waits for the device.
    """

    def __init__(self, skip: bool, interval: int = CHECK_INTERVAL) -> None:
        self._skip = skip
        self._interval = interval
        self._consecutive = 0
        self._unchecked: list[tuple[int, IntArray, StepResult]] = []

    def record(self, progress: Progress, data: Split, documents: IntArray, result: StepResult) -> None:
        """Record the latest step and the documents of its batch."""
        self._unchecked.append((progress.step, documents, result))
        if len(self._unchecked) >= self._interval:
            self.check(progress, data)

    def check(self, progress: Progress, data: Split) -> None:
        """Count the recorded steps that were skipped, or raise if steps must not be skipped."""
        steps, self._unchecked = self._unchecked, []
        flags = torch.stack([result.nonfinite for *_, result in steps]).tolist() if steps else []
        for (step, documents, result), flag in zip(steps, flags, strict=True):
            self._consecutive = self._consecutive + 1 if flag else 0
            progress.skipped += bool(flag)
            ids = ", ".join(str(data.ids[i] if data.ids else i) for i in documents.tolist()) if flag else ""
            if flag and not self._skip:
                raise HillError(
                    f"step {step} is not finite (loss {result.loss.item():g}) on the documents {ids}; "
                    "lower train.lr and train.encoder_lr, set train.clip=1 or train.precision=fp32, or use --plain; or "
                    "continue without such steps with --resume --set train.skip_nonfinite=true"
                )
            if self._consecutive == MAX_SKIPPED:
                raise HillError(
                    f"{MAX_SKIPPED} steps in a row are not finite, the last on the documents {ids}; "
                    "lower train.lr and train.encoder_lr, or set train.precision=fp32"
                )


# The optimiser


def make_optimiser(model: HTCModel, config: TrainConfig, graphs: bool = False) -> torch.optim.Optimizer:
    """AdamW with parameter groups for the pretrained encoder, everything else, and the classifier if it has a rate.

    With `graphs`, learning rates are tensors that CUDA graphs read.
    """
    device = next(model.parameters()).device
    rates = [torch.tensor(rate, device=device) if graphs else rate for rate in _base_rates(config)]
    groups: list[dict[str, Any]] = [{"params": [], "lr": rate} for rate in rates]
    for name, weight in model.named_parameters():
        is_encoder = model.text.pretrained and name.startswith("text.")
        is_classifier = config.classifier_lr > 0 and name.startswith("head")
        if weight.requires_grad:
            groups[0 if is_encoder else 2 if is_classifier else 1]["params"].append(weight)
    fused = device.type in ("cuda", "cpu") and not config.plain
    epsilon = EPSILON if sum(map(len, model.levels)) <= MANY_LABELS else MANY_LABELS_EPSILON
    return torch.optim.AdamW(groups, eps=epsilon, weight_decay=config.weight_decay, fused=fused, capturable=graphs)


def set_rates(
    optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, steps: int, time_share: float = 0.0
) -> float:
    """Set the learning rates of a step (the first is 1) and return that of the encoder.

    They decay with the steps, or with the share of the time that has passed if that is larger.
    """
    warmup = config.warmup * steps if config.warmup < 1 else config.warmup
    decay = 1.0 if config.schedule == "constant" else max(0.0, 1 - max((step - 1) / steps, time_share))
    encoder_rate, *other_rates = _base_rates(config)
    encoder_rate *= min(1.0, step / warmup) if warmup else 1.0
    rates = [rate * decay for rate in (encoder_rate, *other_rates)]
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: CUDA graphs read this tensor
        else:
            group["lr"] = rate
    return rates[0]


def _base_rates(config: TrainConfig) -> list[float]:
    """The learning rates of the parameter groups before warm-up and decay."""
    return [config.encoder_lr, config.lr, *([config.classifier_lr] if config.classifier_lr else [])]


def freeze_layers(text: TextEncoder, count: int) -> None:
    """Freeze the embeddings and the first layers of the encoder; with all its layers, the whole encoder."""
    if not count:
        return
    if not text.pretrained:
        raise ConfigError(f"train.freeze is {count}, but the text encoder is not pretrained; set it to 0")
    encoder: Any = text.encoder
    architecture = ARCHITECTURES.get(encoder.config.model_type)
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise ConfigError(
            f"train.freeze is {count}, but the encoder is of type {encoder.config.model_type}, not {known}"
        )
    layers = encoder.get_submodule(architecture.layers)
    for part in (encoder.embeddings, *layers[:count]) if count < len(layers) else (encoder,):
        part.requires_grad_(False)


# Steps


@dataclass(frozen=True)
class StepResult:
    """The loss of a step and its parts, on the device; `nonfinite` is 1 if the step was not taken."""

    loss: Tensor
    parts: dict[str, Tensor]
    nonfinite: Tensor


def make_steps(session: Session, data: Split) -> StepRunner:
    """The fastest kind of steps for this device and model."""
    config = session.config
    is_single = config.accumulate == 1 and session.context.world_size == 1
    on_gpu = session.device.type == "cuda" and session.inference.packed
    graphed = on_gpu and is_single and not config.recompute and data.vectors is None and session.model.steps_are_equal
    return (GraphedSteps if graphed else StepRunner)(session, data)


class StepRunner:
    """Takes optimiser steps on padded batches, or on packed ones; their documents stay in the memory of the device."""

    def __init__(self, session: Session, data: Split) -> None:
        self.session = session
        self.data = data
        text, listed = session.model.text, session.model.uses_label_lists
        self.resident: DeviceDocuments | None = None
        if session.inference.packed and data.vectors is None:
            self.resident = DeviceDocuments(data.tokens, data.labels, text.pad, session.device, listed)
        self.model = session.context.wrap_model(session.model, self.has_unused_weights)

    def step(self, group: list[IntArray]) -> StepResult:
        """Take one step on the accumulated gradients of these batches."""
        context, buffers, losses = self.session.context, self.copy_buffers(), []
        for documents in group:
            synchronised = context.world_size == 1 or documents is group[-1]  # ranks average gradients once per step
            with context.global_batch(documents), nullcontext() if synchronised else self.model.no_sync():
                loss, parts = self.backward(self.batch(context.shard(documents)), len(group))
            losses.append(loss)
        mean = torch.stack(losses).mean()
        return StepResult(mean, parts, self.update(mean, buffers))

    def has_unused_weights(self) -> bool:
        """Whether some weights get no gradient; tried with a copy of the model."""
        model = deepcopy(self.session.model).train()
        device = self.session.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.session.inference.autocast():
            loss = model(self.batch(np.arange(1))).loss
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return any(grad is None for grad in torch.autograd.grad(loss, weights, allow_unused=True))

    def batch(self, documents: IntArray) -> AnyBatch:
        """These documents on the device."""
        model, data, device = self.session.model, self.data, self.session.device
        if data.vectors is not None:
            labels = batch_labels(data.labels, documents, model.uses_label_lists)
            return Encoded(data.vectors[torch.from_numpy(documents).to(device)], move(labels, device))
        if self.resident:
            return self.resident.packed(move(torch.from_numpy(documents), device), self.resident.size(documents))
        return to_device(collate(data.tokens, data.labels, documents, model.text.pad, model.uses_label_lists), device)

    def backward(self, batch: AnyBatch, n_batches: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Add the gradients of a batch, divided by the batches of the step; returns the loss and its parts."""
        with self.session.inference.tf32():
            with self.session.inference.autocast():
                output = self.model(batch)
            (output.loss / n_batches).backward()
        return output.loss.detach(), {name: part.detach() for name, part in output.parts.items()}

    def copy_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """The saved buffers, which forward passes change, with a copy of each; empty if steps are never skipped."""
        if not self.session.config.skip_nonfinite:
            return []
        saved = self.session.model.state_dict()
        return [(buffer, buffer.clone()) for name, buffer in self.session.model.named_buffers() if name in saved]

    def update(self, loss: Tensor, buffers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Step the optimiser; if loss or gradients are not finite, change nothing and return 1.

        A fused optimiser decides this on the device, so the host need not wait for it.
        """
        model, clip = self.session.model, self.session.config.clip
        optimiser: Any = self.session.optimiser
        norm = get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        nonfinite = ((norm + loss) * 0 != 0).float()  # NaN if one is infinite or NaN
        if self.session.context.world_size > 1:
            dist.all_reduce(nonfinite, dist.ReduceOp.MAX)
        if optimiser.param_groups[0]["fused"]:
            optimiser.found_inf = nonfinite
            if clip:  # the optimiser divides the gradients, which saves a pass over them
                optimiser.grad_scale = ((norm + CLIP_EPSILON) / clip).clamp(min=1.0)
            optimiser.step()
        elif not nonfinite:
            if clip:
                clip_grads_with_norm_(model.parameters(), clip, norm)
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for buffer, copy in buffers:
            buffer.copy_(torch.where(nonfinite > 0, copy, buffer))
        return nonfinite


class GraphedSteps(StepRunner):
    """Replays each step on a packed batch of a known size as one CUDA graph: forward, backward, clipping, optimiser.

    A GPU then never waits for the next kernel launch. The first step of a size runs kernel by kernel, the second is
    recorded, later ones are replayed. All graphs share one memory pool: only the weights, the optimiser and the losses
    outlive a step.
    """

    def __init__(self, session: Session, data: Split) -> None:
        super().__init__(session, data)
        self._seen: Counter[int] = Counter()
        self._graphs: dict[int, tuple[Any, StepResult]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._documents = torch.zeros(session.config.batch_size, dtype=torch.int64, device=session.device)

    def step(self, group: list[IntArray]) -> StepResult:
        """Take one step on this batch."""
        (documents,) = group
        assert self.resident
        size = self.resident.size(documents)
        if len(documents) < len(self._documents) or not self._seen[size]:
            self._seen[size] += len(documents) == len(self._documents)
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):  # the stream on which graphs are recorded
                result = super().step(group)
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        self._documents.copy_(move(torch.from_numpy(documents), self.session.device), non_blocking=True)
        if size not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                buffers = self.copy_buffers()
                loss, parts = self.backward(self.resident.packed(self._documents, size), 1)
                self._graphs[size] = graph, StepResult(loss, parts, self.update(loss, buffers))
        graph, result = self._graphs[size]
        graph.replay()
        parts = {name: part.clone() for name, part in result.parts.items()}
        return StepResult(result.loss.clone(), parts, result.nonfinite.clone())
