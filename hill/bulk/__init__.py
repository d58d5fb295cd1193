"""Bulk prediction: many input files, a folder of Parquet files as output."""

from hill.bulk.run import Bulk, check_target, predict_file, prediction_document
from hill.bulk.source import Cut
from hill.bulk.write import RowOptions

__all__ = ["Bulk", "Cut", "RowOptions", "check_target", "predict_file", "prediction_document"]
