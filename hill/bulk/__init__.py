"""Bulk prediction: many input files, a folder of Parquet files as output."""

from hill.bulk.run import Bulk, predict_file, prediction_document
from hill.bulk.source import Cut

__all__ = ["Bulk", "Cut", "predict_file", "prediction_document"]
