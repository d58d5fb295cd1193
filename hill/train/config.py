"""Settings of training."""

from dataclasses import dataclass

from hill.errors import ConfigError
from hill.settings import at_least, one_of

PRECISIONS = ("auto", "bf16", "fp32")
SCHEDULES = ("constant", "linear")
HEAD_STARTS = ("auto", "on", "off")
STAGES = ("one", "two")
SHORT = 3
METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "subset_accuracy")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained."""

    epochs: int = 20
    """Most passes over the training documents."""
    batch_size: int = 32
    """Documents of a step; with accumulation, of each part of a step."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    encoder_lr: float = 3e-5
    """Learning rate of the text encoder."""
    lr: float = 1e-3
    """Learning rate of everything else, constant while the encoder warms up."""
    classifier_lr: float = 0.0
    """Learning rate of the linear layer that gives the logits; 0 for that of everything else."""
    warmup: float = 0.1
    """Steps over which the encoder's rate rises from 0; below 1, a share of all steps."""
    schedule: str = "linear"
    """What rates do after that: constant as in the paper, or linear down to 0."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit, as in the paper."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    metric: str = "micro_f1"
    """What decides on dev which epoch is best."""
    patience: int = 5
    """Epochs without a new best after which training stops."""
    seed: int = 42
    """Fixes initial weights, order and dropout."""
    precision: str = "auto"
    """fp32, bf16, or auto: bf16 where the device is a GPU that has it."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    freeze: int = 0
    """Layers of the encoder, from the bottom, that stay as they are; the embeddings stay with them."""
    warm_start: str = ""
    """Folder of a trained model, perhaps of another taxonomy, to start from (docs/taxonomies.md)."""
    head_start: str = "auto"
    """Fit structure and head on vectors of the untrained encoder first: on, off, or auto: on for 3 epochs or less."""
    head_epochs: int = 10
    """Passes over the vectors in the head start."""
    head_lr: float = 3e-3
    """Learning rate of the head start."""
    stages: str = "one"
    """one: all losses at once; two, with hill: the contrastive loss alone first, then that of the labels alone."""
    contrast_epochs: int = 2
    """With two stages, how many of the epochs are the first; none of these can be the best."""
    plain: bool = False
    """The slow and obvious loop: fp32, batches drawn at random and padded, no CUDA graphs."""
    compile: bool = False
    """Compile structure and head on a GPU; it takes a while to start."""
    recompute: bool = False
    """Compute the encoder's activations again in the backward pass instead of keeping them: less memory, slower."""
    checkpoint_seconds: float = 60.0
    """Least time between checkpoints."""
    skip_nonfinite: bool = False
    """Leave out, and count, steps whose loss or gradient is infinite or not a number, instead of stopping."""

    def __post_init__(self) -> None:
        one_of(self.precision, PRECISIONS, "train.precision")
        one_of(self.schedule, SCHEDULES, "train.schedule")
        one_of(self.metric, METRICS, "train.metric")
        one_of(self.head_start, HEAD_STARTS, "train.head_start")
        one_of(self.stages, STAGES, "train.stages")
        for name in ("epochs", "batch_size", "accumulate", "patience", "contrast_epochs"):
            at_least(getattr(self, name), 1, f"train.{name}")
        for name in (
            "encoder_lr",
            "lr",
            "classifier_lr",
            "head_lr",
            "warmup",
            "clip",
            "weight_decay",
            "freeze",
            "head_epochs",
            "checkpoint_seconds",
        ):
            at_least(getattr(self, name), 0, f"train.{name}")
        if self.stages == "two":
            self._check_two_stages()

    def _check_two_stages(self) -> None:
        if self.contrast_epochs >= self.epochs:
            raise ConfigError(
                f"train.contrast_epochs is {self.contrast_epochs}, which leaves none of train.epochs={self.epochs} "
                "to the second stage; set it lower, or train.stages=one"
            )
        if self.head_start == "on":
            raise ConfigError(
                "train.head_start is 'on', but train.stages is 'two', where the contrastive loss comes first; "
                "use auto or off"
            )

    @property
    def first_epochs(self) -> int:
        """Epochs of a first stage; 0 where there is but one."""
        return self.contrast_epochs if self.stages == "two" else 0

    @property
    def starts_head(self) -> bool:
        """Whether there is a head start: for the first 3 of 6 epochs of HILL a training with it was ahead, then not."""
        return bool(self.head_epochs and self.stages == "one" and not self.warm_start) and (
            self.head_start == "on" or (self.head_start == "auto" and self.epochs <= SHORT)
        )
