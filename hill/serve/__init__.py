"""The HTTP server: a REST API, Annif's API and a web page."""

from hill.serve.config import ServeConfig

__all__ = ["ServeConfig"]
