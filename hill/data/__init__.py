"""Documents and their labels: reading them, and telling whether they are fit to train on."""

from hill.data.documents import Documents, read_data, read_documents
from hill.data.files import find_splits

__all__ = ["Documents", "find_splits", "read_data", "read_documents"]
