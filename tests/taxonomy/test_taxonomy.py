"""The taxonomy, compared with slow and obvious implementations of its operations."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from hill.errors import TaxonomyError
from hill.taxonomy import Label, Taxonomy
from tests.conftest import random_taxonomy

seeds = st.integers(0, 10_000)
max_parents = st.integers(1, 4)


def slow_ancestors(taxonomy: Taxonomy, row: int) -> set[int]:
    ancestors: set[int] = set()
    for parent in taxonomy[row].parents:
        parent_row = taxonomy.ids.index(parent)
        ancestors |= {parent_row} | slow_ancestors(taxonomy, parent_row)
    return ancestors


def slow_depth(taxonomy: Taxonomy, row: int) -> int:
    return 1 + max((slow_depth(taxonomy, taxonomy.ids.index(p)) for p in taxonomy[row].parents), default=0)


@given(seeds, max_parents)
def test_ancestors_and_descendants_follow_the_parents(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=parents)
    ancestors = [slow_ancestors(taxonomy, row) for row in range(len(taxonomy))]
    for row in range(len(taxonomy)):
        assert taxonomy.ancestors(row).tolist() == sorted(ancestors[row])
        assert taxonomy.descendants(row).tolist() == [
            other for other in range(len(taxonomy)) if row in ancestors[other]
        ]
        assert set(taxonomy.decode(taxonomy.parents(row))) == set(taxonomy[row].parents)
        assert all(row in taxonomy.parents(child) for child in taxonomy.children(row))


@given(seeds, max_parents)
def test_depth_is_the_longest_path_and_levels_group_by_it(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=parents)
    depths = [slow_depth(taxonomy, row) for row in range(len(taxonomy))]
    assert taxonomy.depth.tolist() == depths
    expected = [[row for row in range(len(taxonomy)) if depths[row] == d] for d in range(1, max(depths) + 1)]
    assert [level.tolist() for level in taxonomy.levels] == expected
    assert taxonomy.roots.tolist() == [row for row, label in enumerate(taxonomy) if not label.parents]
    parents_of_any = {parent for label in taxonomy for parent in label.parents}
    assert taxonomy.leaves.tolist() == [row for row, label in enumerate(taxonomy) if label.id not in parents_of_any]
    assert taxonomy.is_dag == any(len(label.parents) > 1 for label in taxonomy)


@given(seeds, max_parents)
def test_closures_of_many_sets_equal_the_closure_of_each(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=parents)
    labels = np.random.default_rng(seed).random((17, len(taxonomy))) < 0.05
    closed = taxonomy.closures(csr_array(labels)).toarray()
    for document, rows in enumerate(labels):
        given_rows = set(np.flatnonzero(rows).tolist())
        expected = given_rows.union(*(slow_ancestors(taxonomy, row) for row in given_rows))
        assert set(np.flatnonzero(closed[document]).tolist()) == expected
        assert taxonomy.closure(given_rows).tolist() == sorted(expected)


@given(seeds, max_parents)
def test_paths_are_all_paths_from_a_root(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, n=12, roots=2, most_parents=parents)

    def count(row: int) -> int:
        return sum(count(parent) for parent in taxonomy.parents(row)) or 1

    for row in range(len(taxonomy)):
        paths = list(taxonomy.paths(row))
        assert len(paths) == len(set(paths)) == count(row)
        for path in paths:
            assert path[-1] == row and path[0] in taxonomy.roots
            assert all(upper in taxonomy.parents(lower) for upper, lower in pairwise(path))


def test_the_graph_is_undirected(animals: Taxonomy) -> None:
    edges = {(0, 1), (0, 2), (1, 3), (2, 3), (1, 4), (2, 5)}
    graph = animals.graph().toarray()
    assert {(i, j) for i, j in zip(*np.nonzero(graph), strict=True) if i < j} == edges
    assert (graph == graph.T).all() and set(graph.ravel()) == {0.0, 1.0}
    assert graph.shape == (7, 7) and not graph[6].any()


def test_labels_are_found_by_id_name_or_path(animals: Taxonomy) -> None:
    assert animals.encode(["bat", "Plants", "Animals > Flyers > Others", " a > m "]).tolist() == [1, 3, 5, 6]
    assert animals.decode([3, 0]) == ["bat", "a"]
    assert animals.row("fo") == 5 and "fo" in animals and "Others" not in animals
    assert animals.find("Others") == [4, 5]
    assert animals.find("Flyers > Others") == [], "a path begins at a root"
    assert animals.find("Animals > Plants") == []
    assert animals.path_name(3) == "Animals > Mammals > Bats"


def test_most_specific_rows_are_those_without_a_descendant_among_them(animals: Taxonomy) -> None:
    rows = [animals.row(label) for label in ("a", "fo", "m", "fo", "p", "f")]
    closures = {row: set(animals.closure([row]).tolist()) - {row} for row in rows}
    expected = [row for row in dict.fromkeys(rows) if not any(row in closures[other] for other in rows)]
    assert animals.most_specific(rows) == expected and animals.decode(expected) == ["fo", "m", "p"]


def test_letters_with_accents_are_found_in_both_forms() -> None:
    composed, decomposed = "Sant\u00e9", "Sante\u0301"
    for stored, asked in ((composed, decomposed), (decomposed, composed)):
        taxonomy = Taxonomy([Label("s", stored), Label("b", "Boulangerie", ("s",))])
        assert taxonomy.find(asked) == [0] and taxonomy.find(f"{asked} > Boulangerie") == [1]


def test_unknown_and_ambiguous_labels_raise(animals: Taxonomy) -> None:
    with pytest.raises(TaxonomyError, match="label 'Mamals' is not in the taxonomy; did you mean 'Mammals'"):
        animals.encode(["Mamals"])
    with pytest.raises(TaxonomyError, match=r"label 'xyzzy' is not in the taxonomy$"):
        animals.row("xyzzy")
    with pytest.raises(
        TaxonomyError, match=r"the name 'Others' belongs to 2 labels; use an id \('mo', 'fo'\) or a path"
    ):
        animals.encode(["Others"])


def test_an_id_wins_over_a_name() -> None:
    taxonomy = Taxonomy([Label("x", "y"), Label("y", "x")])
    assert taxonomy.encode(["x"]).tolist() == [0]


def test_nearest_finds_labels_with_a_missing_letter() -> None:
    words = [
        "astronomy",
        "biology",
        "chemistry",
        "economics",
        "geography",
        "history",
        "linguistics",
        "mathematics",
        "medicine",
        "philosophy",
    ]
    taxonomy = Taxonomy(Label(word, word.title()) for word in words)
    for word in words:
        assert taxonomy.nearest(word[:3] + word[4:]).casefold() == word  # type: ignore[union-attr]
    assert taxonomy.nearest("") is None and taxonomy.nearest("qqqqqq") is None


def test_an_empty_taxonomy() -> None:
    empty = Taxonomy([])
    assert len(empty) == 0 and empty.levels == [] and empty.graph().shape == (0, 0) and not empty.is_dag
    assert empty.closures(csr_array((3, 0), dtype=bool)).shape == (3, 0)


def test_equality_is_by_labels_in_order(animals: Taxonomy) -> None:
    assert animals == Taxonomy(animals) and hash(animals) == hash(Taxonomy(animals))
    assert animals != Taxonomy(list(animals)[::-1]) and animals != "animals"
    assert repr(animals) == "Taxonomy(DAG of 7 labels, 6 edges, depth 3)"


def test_the_document_restores_an_equal_taxonomy(animals: Taxonomy) -> None:
    assert Taxonomy.from_dict(animals.to_dict()) == animals
    with pytest.raises(TaxonomyError, match=r"'t\.json' is not a taxonomy that hill wrote"):
        Taxonomy.from_dict([], "t.json")
    cyclic = {"format": "hill-taxonomy", "version": 1, "labels": [{"id": "a", "parents": ["a"]}]}
    with pytest.raises(TaxonomyError, match=r"label 'a' is its own parent \(at labels\[0\] of t.json\)"):
        Taxonomy.from_dict(cyclic, "t.json")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([Label("", "x")], "the id is empty"),
        ([Label("x", " ")], "the name of label 'x' is empty"),
        ([Label("x", "x"), Label("x", "y")], r"label id 'x' occurs twice, first as labels\[0\]; ids must"),
        ([Label("x", "x", ("x",))], "label 'x' is its own parent"),
        ([Label("x", "x", ("y",))], "label 'x' has parent 'y', which is not in the taxonomy"),
        ([Label("x", "x" * 1_001)], r"1,001 characters long \(labels\[0\]\); at most 1,000"),
        ([Label("x", "x", (), "d" * 100_001)], "the description 'd+…' is 100,001 characters long"),
        ([Label("x", "a\ud800b")], "lone surrogate"),
        (
            [Label("a", "A", ("c",)), Label("b", "B", ("a",)), Label("c", "C", ("b",)), Label("d", "D", ("a",))],
            "each the parent of the next: 'a' > 'b' > 'c' > 'a'; remove one",
        ),
    ],
)
def test_invalid_labels_raise(labels: list[Label], message: str) -> None:
    with pytest.raises(TaxonomyError, match=message):
        Taxonomy(labels)


def test_the_message_for_a_long_cycle_is_shortened() -> None:
    labels = [Label(f"l{i}", "x", (f"l{(i + 1) % 500}",)) for i in range(500)]
    with pytest.raises(TaxonomyError, match="… 481 more … > 'l0'") as caught:
        Taxonomy(labels)
    assert len(str(caught.value)) < 400


def test_parents_may_repeat_and_come_later() -> None:
    taxonomy = Taxonomy([Label("child", "Child", ("top", "top")), Label("top", "Top")])
    assert taxonomy.edges == 1 and taxonomy.depth.tolist() == [2, 1]


@given(seeds, max_parents)
def test_first_parents_are_the_first_in_the_given_order(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=parents)
    expected = [taxonomy.ids.index(label.parents[0]) if label.parents else -1 for label in taxonomy]
    assert taxonomy.first_parents.tolist() == expected
    pairs = [(row, taxonomy.ids.index(parent)) for row, label in enumerate(taxonomy) for parent in label.parents]
    assert taxonomy.edge_array.tolist() == [list(pair) for pair in pairs] and taxonomy.edge_array.dtype == np.int64


def test_deep_and_wide_taxonomies_stay_linear() -> None:
    chain = Taxonomy(Label(f"l{i}", "x", (f"l{i - 1}",) if i else ()) for i in range(10_000))
    assert len(chain.levels) == 10_000
    start = time.process_time()
    closed = chain.closures(csr_array(([True], ([0], [9_999])), shape=(1, 10_000)))
    assert closed.nnz == 10_000 and time.process_time() - start < 10
    star = Taxonomy(Label(f"l{i}", "x", ("l0",) if i else ()) for i in range(100_000))
    assert len(star.children(0)) == 99_999
