"""The server: REST with batches across requests, Annif's API, and a page. What needs FastAPI is in `hill.serve.app`."""

from hill.serve.config import ServeConfig

__all__ = ["ServeConfig"]
