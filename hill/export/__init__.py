"""Export to ONNX, and prediction with ONNX Runtime."""

from hill.export.runtime import OnnxClassifier

__all__ = ["OnnxClassifier"]
