"""The given labels: what a taxonomy is, how it is read and written, and what must hold of it."""

from hill.taxonomy.label import Label
from hill.taxonomy.read import read_taxonomy, write_taxonomy
from hill.taxonomy.taxonomy import SEPARATOR, Taxonomy

__all__ = ["SEPARATOR", "Label", "Taxonomy", "read_taxonomy", "write_taxonomy"]
