"""What reproduces the paper: data sets, experiments, tables, figures and significance tests."""

from hill.research.compare import Predictions

__all__ = ["Predictions"]
