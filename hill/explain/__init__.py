"""Explanations: which words raise or lower the score of a label."""

from hill.explain.attribution import METHODS, explain
from hill.explain.result import Explanation, LabelExplanation, Word

__all__ = ["METHODS", "Explanation", "LabelExplanation", "Word", "explain"]
