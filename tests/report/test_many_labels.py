"""Reports with very many labels: sparse scores count like dense ones, and the page stays small."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from hill.decode import DecodeConfig
from hill.predictor import ScoredBatch
from hill.report import ErrorReport, make_report
from hill.sparse import top_k
from hill.taxonomy import Label, Taxonomy
from tests.conftest import random_taxonomy
from tests.report.test_page import Page
from tests.report.test_report import Given, documents_of, draw_case, report_of


class SparseGiven(Given):
    """Yields only the scores above 0."""

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        for documents, scores in super().scores(texts):
            yield documents, csr_array(scores)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from(["raw", "closure", "top-down", "safe", "ancestors"]))
def test_sparse_scores_count_like_dense_scores(seed: int, most_parents: int, strategy: str) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    highest = top_k(scores, 4).toarray()
    config = DecodeConfig(strategy=strategy, calibrate="off", abstain=0.4 * (seed % 2))
    full, sparse = (
        make_report(kind(taxonomy, highest, config), documents_of(gold)).to_dict() for kind in (Given, SparseGiven)
    )
    for part in ("labels", "paths", "worst", "errors", "sizes"):
        assert sparse[part] == full[part], part
    for key in ("micro_f1", "macro_f1", "hierarchical_f1", "precision", "recall"):
        assert sparse["thresholds"][key] == pytest.approx(full["thresholds"][key])
    for key in ("before", "after"):
        assert [found["pairs"] for found in sparse["reliability"][key]] == [
            found["pairs"] for found in full["reliability"][key]
        ]
        for one, other in zip(sparse["reliability"][key], full["reliability"][key], strict=True):
            assert one == pytest.approx(other)


def test_blocks_of_labels_give_the_same_macro_f1(monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy, gold, scores = draw_case(4, 2, documents=60)
    whole = report_of(taxonomy, gold, scores)["thresholds"]
    monkeypatch.setattr("hill.report.counts.BLOCK_LABELS", 3)
    assert report_of(taxonomy, gold, scores)["thresholds"]["macro_f1"] == pytest.approx(whole["macro_f1"])


def test_a_long_list_keeps_the_most_frequent_labels_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy = Taxonomy([Label(name, f"name of {name}") for name in "abcdef"])
    gold, scores = np.zeros((2, 4, 6))
    gold[:2, 5] = gold[0, 4] = 1
    scores[:, 3] = 1
    report = report_of(taxonomy, gold, scores)
    assert len(report["labels"]) == 6 and "are left out" not in Page(ErrorReport(report).html()).text
    monkeypatch.setattr("hill.report.report.MAX_ROWS", 3)
    page = Page(ErrorReport(report).html())
    assert [row[0] for row in page.tables[-1][1:]] == [f"name of {name} {name}" for name in "fed"]
    assert "3 of 6" in page.text and "3 are left out" in page.text


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_first_parents_and_path_names_follow_the_first_path(seed: int, most_parents: int) -> None:
    taxonomy = random_taxonomy(seed, n=25, most_parents=most_parents)
    first = [next(taxonomy.paths(row)) for row in range(len(taxonomy))]
    assert taxonomy.first_parents.tolist() == [path[-2] if len(path) > 1 else -1 for path in first]
    assert taxonomy.path_names() == [" > ".join(taxonomy[step].name for step in path) for path in first]
