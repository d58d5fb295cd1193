"""Models for other runtimes: an ONNX graph with all that predicting needs, and the predictor that reads it."""

from hill.export.runtime import OnnxClassifier

__all__ = ["OnnxClassifier"]
