"""Error reports: what a model gets wrong, as a page and as JSON."""

from hill.report.report import ErrorReport, make_report

__all__ = ["ErrorReport", "make_report"]
