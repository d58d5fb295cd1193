"""Explanations: which words of a text speak for and against a label."""

from hill.explain.make import METHODS, explain
from hill.explain.result import Explanation, LabelExplanation, Word

__all__ = ["METHODS", "Explanation", "LabelExplanation", "Word", "explain"]
