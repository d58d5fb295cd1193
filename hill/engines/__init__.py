"""Prediction in bulk: file to file, or many files to a folder, in memory that does not grow."""

from hill.engines.bulk import Bulk
from hill.engines.local import predict_file, prediction_document
from hill.engines.parts import Cut

__all__ = ["Bulk", "Cut", "predict_file", "prediction_document"]
