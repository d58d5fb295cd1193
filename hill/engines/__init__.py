"""Prediction in bulk: file to file, in memory that does not grow."""

from hill.engines.local import predict_file

__all__ = ["predict_file"]
