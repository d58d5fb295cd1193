"""What reproduces the paper: data sets, experiments, tables, figures and significance tests."""

from hill.research.predictions import Predictions

__all__ = ["Predictions"]
