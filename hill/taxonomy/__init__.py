"""Taxonomies: labels and their parents, reading and writing, and differences between versions."""

from hill.taxonomy.readers import read_taxonomy, write_taxonomy
from hill.taxonomy.taxonomy import SEPARATOR, Label, Taxonomy

__all__ = ["SEPARATOR", "Label", "Taxonomy", "read_taxonomy", "write_taxonomy"]
