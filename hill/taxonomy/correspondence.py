"""Correspondence tables between two versions of a taxonomy: the labels that each old label may have become."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from hill.errors import TaxonomyError
from hill.io import error_reason
from hill.taxonomy.taxonomy import Taxonomy

Correspondence = Mapping[str, tuple[int, ...]]
"""The rows of the new taxonomy that an old label, by its id, may have become."""


def read_correspondence(path: Path, taxonomy: Taxonomy) -> Correspondence:
    """Read a table with one pair of an old and a new label id per row: CSV, or TSV, with or without a header.

    An old label without a new one was removed: it has no candidates.
    """
    candidates: dict[str, list[int]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = "\t" if path.suffix == ".tsv" else ";" if ";" in first and "," not in first else ","
            rows = list(csv.reader(file, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaxonomyError(
            f"'{path}' cannot be read: {error_reason(error)}; expected a CSV file with old and new label"
        ) from None
    header = [cell.strip().casefold() for cell in rows[0][:2]] if rows else []
    columns = (1, 0) if header == ["new", "old"] else (0, 1)
    for line, row in enumerate(rows, start=1):
        if not row or (line == 1 and sorted(header) == ["new", "old"]):
            continue
        if len(row) < 2:
            raise TaxonomyError(f"line {line} of '{path}' has one column; expected an old and a new label")
        old, new = (row[column].strip() for column in columns)
        found = candidates.setdefault(old, [])
        if new and new not in taxonomy:
            raise TaxonomyError(f"label '{new}' is not in the new taxonomy (line {line} of {path})")
        if new:
            found.append(taxonomy.row(new))
    return {old: tuple(dict.fromkeys(new)) for old, new in candidates.items()}


def old_ids(labels: Iterable[str], old: Taxonomy) -> list[str]:
    """The ids of labels of the old taxonomy, by id, name or path, without ancestors of the others."""
    return old.decode(old.most_specific(old.encode(labels).tolist()))


def allowed_labels(labels: Iterable[str], table: Correspondence, taxonomy: Taxonomy) -> list[tuple[int, ...]]:
    """The candidates of each old label; a label that the table does not have stays, if the new taxonomy has it."""
    allowed = []
    for label in labels:
        if label in table:
            allowed.append(table[label])
        elif label in taxonomy:
            allowed.append((taxonomy.row(label),))
        else:
            raise TaxonomyError(
                f"label '{label}' is neither in the correspondence table nor in the new taxonomy; add a row for it"
            )
    return allowed
