"""Training: the loop, checkpoints, head start, warm start and distributed training."""

from hill.train.config import TrainConfig
from hill.train.trainer import Epoch, Session, Split, Step, train

__all__ = ["Epoch", "Session", "Split", "Step", "TrainConfig", "train"]
