"""Training: one visible loop, its optimiser, its checkpoints, and the head start."""

from hill.train.config import TrainConfig
from hill.train.loop import Epoch, Step, train
from hill.train.session import Session, Split

__all__ = ["Epoch", "Session", "Split", "Step", "TrainConfig", "train"]
