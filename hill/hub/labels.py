"""The forms that labels have in scikit-learn: some for each text, one for each text, or a matrix of 0 and 1."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.data import Documents
from hill.data.documents import label_documents
from hill.errors import DataError
from hill.predictor import check_texts
from hill.taxonomy import Taxonomy
from hill.types import IntArray


def is_matrix(labels: Any) -> bool:
    """Whether labels are a dense or sparse matrix."""
    return getattr(labels, "ndim", 0) == 2


def make_indicator(labels: Iterable[str | Iterable[str]], taxonomy: Taxonomy) -> IntArray:
    """Label sets (ids, names or paths) as 0 and 1 (documents, L), ancestors included."""
    rows = [taxonomy.encode([given] if isinstance(given, str) else given) for given in labels]
    places = np.concatenate([*rows, np.empty(0, dtype=np.int64)])
    values = np.ones(len(places), dtype=bool), places, np.cumsum([0, *map(len, rows)])
    return taxonomy.closures(csr_array(values, shape=(len(rows), len(taxonomy)))).toarray().astype(np.int64)


def make_documents(texts: Sequence[str], labels: Any, taxonomy: Taxonomy) -> Documents:
    """Texts with their labels, whatever form these have; ancestors are added."""
    texts = list(check_texts(texts))
    if is_matrix(labels):
        return _of_matrix(texts, labels, taxonomy)
    sets = [[given] if isinstance(given, str) else given for given in (() if labels is None else labels)]
    return label_documents(texts, sets, taxonomy)


def _of_matrix(texts: list[str], labels: Any, taxonomy: Taxonomy) -> Documents:
    if labels.shape != (len(texts), len(taxonomy)):
        raise DataError(
            f"labels have the shape {labels.shape}; expected ({len(texts)}, {len(taxonomy)}): a row for each text, a "
            "column for each label in the taxonomy's order, as `indicator` makes them"
        )
    given: csr_array[Any] = csr_array(labels, dtype=bool, copy=True)
    given.eliminate_zeros()
    if len(bare := np.flatnonzero(np.diff(given.indptr) == 0)):
        raise DataError(f"text {bare[0]} has no labels; expected at least one 1 in its row")
    closed = taxonomy.closures(given)
    return Documents([str(place) for place in range(len(texts))], texts, closed, closed.nnz - given.nnz)
