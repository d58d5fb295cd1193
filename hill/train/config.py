"""The settings of training."""

from dataclasses import dataclass

from hill.settings import check_at_least, check_one_of, within

NOT_NEGATIVE = (
    "encoder_lr", "lr", "classifier_lr", "warmup", "clip", "weight_decay", "freeze", "lora", "checkpoint_seconds",
    "steps", "minutes", "evaluations",
)  # fmt: skip
PRECISIONS = ("auto", "bf16", "fp32")
METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "subset_accuracy")
HEAD_START_EPOCHS = 3
"""`head_start=auto` is on for up to this many epochs: of 6 epochs of HILL, the first 3 were better with it."""
LARGEST_SEED = 2**32 - 1
"""NumPy and scikit-learn accept no larger seed."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained."""

    epochs: int = 20
    """Maximum number of passes over the training documents."""
    steps: int = 0
    """Number of optimiser steps; 0: as many as `train.epochs` passes have."""
    minutes: float = 0.0
    """Time limit in minutes of the whole training, dev and test included; presets choose settings that fit it. 0: no
    limit."""
    evaluations: int = 0
    """How often dev is scored during training, at most; 0: after each epoch."""
    ensemble: bool = False
    """Also train the linear model, and mix its scores with those of the model; dev decides on the weights."""
    batch_size: int = 32
    """Documents per batch."""
    accumulate: int = 1
    """Batches whose gradients are accumulated per step."""
    encoder_lr: float = 3e-5
    """Learning rate of the text encoder."""
    lr: float = 1e-3
    """Learning rate of everything else; it has no warm-up."""
    classifier_lr: float = 0.0
    """Learning rate of the linear layer that computes the logits; 0 to use train.lr."""
    warmup: float = 0.1
    """Steps over which the learning rate of the encoder rises from 0; below 1, a share of all steps."""
    schedule: str = "linear"
    """Learning rates after the warm-up: constant as in the paper, or linear down to 0."""
    clip: float = 1.0
    """Maximum norm of the gradient; 0 for no limit, as in the paper."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    metric: str = "micro_f1"
    """The dev metric that selects the best epoch."""
    patience: int = 5
    """Training stops after this many epochs without a new best."""
    seed: int = 42
    """Random seed of initial weights, document order and dropout."""
    precision: str = "auto"
    """fp32, bf16, or auto: bf16 if the device has it; on other CPUs with VNNI, a trained model predicts in int8."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    freeze: int = 0
    """Encoder layers, from the bottom, that are not trained; above 0 the embeddings are not trained either. With all
    layers the encoder is constant: its vectors are computed once and cached."""
    lora: int = 0
    """Rank of adapters (LoRA) that are trained in place of the encoder's weights; 0 to train the weights."""
    warm_start: str = ""
    """Folder of a trained model to start from; its taxonomy may be another version (docs/taxonomies.md)."""
    head_start: str = "auto"
    """First fit structure and head on vectors of the untrained encoder: on, off, or auto: on for up to 3 epochs."""
    head_epochs: int = 10
    """Epochs of the head start."""
    plain: bool = False
    """The slow and simple loop: fp32, padded batches, no CUDA graphs."""
    recompute: bool = False
    """Recompute the activations of the encoder in the backward pass: less memory, slower."""
    checkpoint_seconds: float = 60.0
    """Minimum time between checkpoints."""
    skip_nonfinite: bool = False
    """Skip and count steps whose loss or gradient is infinite or NaN, instead of stopping."""

    def __post_init__(self) -> None:
        check_one_of(self.precision, PRECISIONS, "train.precision")
        check_one_of(self.schedule, ("constant", "linear"), "train.schedule")
        check_one_of(self.metric, METRICS, "train.metric")
        check_one_of(self.head_start, ("auto", "on", "off"), "train.head_start")
        for name in ("epochs", "batch_size", "accumulate", "patience", "head_epochs"):
            check_at_least(getattr(self, name), 1, f"train.{name}")
        for name in NOT_NEGATIVE:
            check_at_least(getattr(self, name), 0, f"train.{name}")
        within(self.seed, 0, LARGEST_SEED, "train.seed")

    @property
    def inference_precision(self) -> str:
        """The precision of forward passes."""
        return "fp32" if self.plain else self.precision

    @property
    def has_head_start(self) -> bool:
        """Whether training begins with a head start."""
        if self.warm_start:
            return False
        is_short = not self.steps and self.epochs <= HEAD_START_EPOCHS
        return self.head_start == "on" or (self.head_start == "auto" and is_short)
