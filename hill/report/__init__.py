"""The report of an evaluation: where a model errs, as a page for people and as JSON for programs."""

from hill.report.make import make_report
from hill.report.result import Report

__all__ = ["Report", "make_report"]
