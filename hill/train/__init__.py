"""Training: the loop, the optimiser, checkpoints, head start, warm start and distributed training."""

from hill.train.config import TrainConfig
from hill.train.session import Session, Split
from hill.train.trainer import Epoch, Step, train

__all__ = ["Epoch", "Session", "Split", "Step", "TrainConfig", "train"]
