"""Labelled documents: reading and checking them, and turning them into batches of tokens."""

from hill.data.documents import Documents, read_data, read_documents
from hill.data.readers import find_splits

__all__ = ["Documents", "find_splits", "read_data", "read_documents"]
