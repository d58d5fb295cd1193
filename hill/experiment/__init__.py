"""Experiments: the tables and figures of the paper on any data, and paired tests between two runs."""

from hill.experiment.predictions import Predictions

__all__ = ["Predictions"]
