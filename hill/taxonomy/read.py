"""Reading a taxonomy whatever its format, and writing it in one form that keeps everything."""

import json
import os
from pathlib import Path

from hill.errors import TaxonomyError
from hill.taxonomy.edges import read_edges
from hill.taxonomy.nested import read_json, taxonomy_document
from hill.taxonomy.paths import read_paths
from hill.taxonomy.skos import read_skos
from hill.taxonomy.source import Source
from hill.taxonomy.table import header_of, is_table, read_table
from hill.taxonomy.taxonomy import Taxonomy

SKOS_STARTS = ("@prefix", "@base", "prefix ", "base ", "<?xml", "<rdf:rdf", "<http")
LONGEST_START = max(map(len, SKOS_STARTS))
SKOS_SUFFIXES = {".ttl", ".rdf", ".nt", ".owl", ".xml", ".skos"}


def read_taxonomy(path: str | os.PathLike[str], language: str = "en") -> Taxonomy:
    """The taxonomy in a file; its format is known by its name and content.

    Args:
        path: a table (TSV, CSV), lines of a parent and its children, a list of paths, JSON, or SKOS.
        language: of the labels, where the file has several (SKOS).
    """
    source = Source.open(Path(path))
    start, suffix = source.text.lstrip()[:LONGEST_START].casefold(), source.path.suffix.casefold()
    if suffix in SKOS_SUFFIXES or start.startswith(SKOS_STARTS):
        return read_skos(source, language)
    if suffix == ".json" or start.startswith(("{", "[")):
        return read_json(source)
    if suffix == ".taxonomy":
        return read_edges(source)
    return _read_lines(source, suffix)


def _read_lines(source: Source, suffix: str) -> Taxonomy:
    first = next(text for _, text in source.lines())
    if "\t" in first or suffix == ".tsv":
        return read_table(source) if "\t" not in first or is_table(source) else read_edges(source)
    if suffix == ".csv" or header_of(first.split(",")) or header_of(first.split(";")):
        return read_table(source)
    return read_paths(source)


def write_taxonomy(taxonomy: Taxonomy, path: str | os.PathLike[str]) -> None:
    """Write the taxonomy as JSON that `read_taxonomy` turns into an equal one; whole or not at all."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(taxonomy_document(taxonomy), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise TaxonomyError(f"cannot write '{target}': {error.strerror}") from None
