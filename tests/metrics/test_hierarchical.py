"""Measures that know the taxonomy, against definitions spelled out with Python sets on random forests and DAGs."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hill.metrics import curve_scores, hierarchical_scores
from hill.taxonomy import Label, Taxonomy
from hill.taxonomy.propagate import Edges

GRID = [i / 100 for i in range(101)]


def build(parents):
    return Taxonomy([Label(str(row), str(row), tuple(map(str, above))) for row, above in enumerate(parents)])


@st.composite
def taxonomies(draw, max_parents=3):
    """Parents of each label as lists of rows, in an order that is not the order of depth."""
    n = draw(st.integers(1, 9))
    above = [draw(st.sets(st.integers(0, i - 1), max_size=max_parents)) if i else set() for i in range(n)]
    place = draw(st.permutations(range(n)))
    parents = [[] for _ in range(n)]
    for i, rows in enumerate(above):
        parents[place[i]] = sorted(place[row] for row in rows)
    return parents


@st.composite
def cases(draw, max_parents=3):
    parents = draw(taxonomies(max_parents))
    shape = (draw(st.integers(0, 5)), len(parents))
    fill = draw(st.sampled_from([st.booleans(), st.just(False), st.just(True)]))
    scores = st.sampled_from(GRID) | st.floats(0, 1)
    return SimpleNamespace(
        parents=parents,
        taxonomy=build(parents),
        labels=draw(arrays(bool, shape, elements=st.booleans())),
        predicted=draw(arrays(bool, shape, elements=fill)),
        scores=draw(arrays(float, shape, elements=scores, fill=st.nothing())),
    )


def sets(array):
    return [set(np.flatnonzero(row).tolist()) for row in array]


def ancestors(parents, row):
    found = set()
    for parent in parents[row]:
        found |= {parent} | ancestors(parents, parent)
    return found


def closure(parents, rows):
    return set(rows).union(*(ancestors(parents, row) for row in rows))


def ends(parents, rows):
    return {row for row in rows if not any(row in parents[other] for other in rows)}


def f1(hits, predicted, gold):
    return 2 * hits / (predicted + gold) if predicted + gold else 0.0


def share(part, whole):
    return part / whole if whole else 0.0


def of_closed(case):
    pairs = [(closure(case.parents, g), closure(case.parents, p)) for g, p in zip(*both(case), strict=True)]
    n = len(pairs)
    hits, predicted, gold = (
        sum(len(x) for x in parts)
        for parts in ([g & p for g, p in pairs], [p for _, p in pairs], [g for g, _ in pairs])
    )
    return {
        "hierarchical_precision": share(hits, predicted),
        "hierarchical_recall": share(hits, gold),
        "hierarchical_f1": f1(hits, predicted, gold),
        "hierarchical_precision_documents": share(sum(share(len(g & p), len(p)) for g, p in pairs), n),
        "hierarchical_recall_documents": share(sum(share(len(g & p), len(g)) for g, p in pairs), n),
        "hierarchical_f1_documents": share(sum(f1(len(g & p), len(p), len(g)) for g, p in pairs), n),
    }


def both(case):
    return sets(case.labels), sets(case.predicted)


def micro_macro(triples, rows):
    """Micro F1 of (hits, predicted, gold) sets summed over documents, and the mean F1 of these rows."""
    each = [[sum(row in found[i] for found in triples) for i in range(3)] for row in rows]
    micro = f1(*(sum(len(found[i]) for found in triples) for i in range(3)))
    return micro, share(sum(f1(*counts) for counts in each), len(each))


def of_consistent(case):
    triples = [
        ({row for row in g & p if ancestors(case.parents, row) <= g & p}, p, g)
        for g, p in zip(*both(case), strict=True)
    ]
    micro, macro = micro_macro(triples, range(len(case.parents)))
    return {"consistent_micro_f1": micro, "consistent_macro_f1": macro}


def of_paths(case):
    triples = []
    for g, p in zip(*both(case), strict=True):
        gold, predicted = ends(case.parents, closure(case.parents, g)), ends(case.parents, p)
        whole = {row for row in predicted if ancestors(case.parents, row) <= p}
        triples.append((gold & whole, predicted, gold))
    ended = set().union(*(predicted | gold for _, predicted, gold in triples))
    micro, macro = micro_macro(triples, sorted(ended))
    return {"path_micro_f1": micro, "path_macro_f1": macro}


def of_common(case):
    met = more = less = 0
    for g, p in zip(*both(case), strict=True):
        gold, predicted = closure(case.parents, g), closure(case.parents, p)

        def stops(row, own, other):
            children = {child for child in own if row in case.parents[child]}
            return not children or bool(children - other)

        met += sum(stops(row, gold, predicted) and stops(row, predicted, gold) for row in gold & predicted)
        more += len(predicted - gold)
        less += len(gold - predicted)
    precision, recall = share(met, met + more), share(met, met + less)
    lca_f1 = share(2 * precision * recall, precision + recall)
    return {"lca_precision": precision, "lca_recall": recall, "lca_f1": lca_f1}


def of_violations(case):
    return {"violations": share(sum(p != closure(case.parents, p) for p in sets(case.predicted)), len(case.labels))}


ORACLES = [of_closed, of_consistent, of_paths, of_common, of_violations]


@given(cases())
def test_hierarchical_scores_follow_their_definitions(case):
    found = hierarchical_scores(case.labels, case.predicted, case.taxonomy)
    expected = {name: value for oracle in ORACLES for name, value in oracle(case).items()}
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_hierarchical_scores_where_hits_and_gaps_mix(seed):
    """Larger sets, each prediction the closed gold set with some labels dropped and some added."""
    rng = np.random.default_rng(seed)
    parents = [rng.choice(row, size=min(row, rng.integers(3)), replace=False).tolist() for row in range(14)]
    labels = rng.random((20, 14)) < 0.2
    for document, rows in enumerate(sets(labels)):
        labels[document, sorted(closure(parents, rows))] = True
    predicted = labels ^ (rng.random(labels.shape) < 0.1)
    case = SimpleNamespace(parents=parents, labels=labels, predicted=predicted)
    found = hierarchical_scores(labels, predicted, build(parents))
    assert found == pytest.approx({name: value for oracle in ORACLES for name, value in oracle(case).items()})


@given(cases(max_parents=1), st.data())
def test_lca_of_single_paths_is_the_textbook_one(case, data):
    """One gold and one predicted label in a forest: the way from each up to the lowest label they share."""
    rows = st.integers(0, len(case.parents) - 1)
    gold, predicted = data.draw(rows), data.draw(rows)

    def way(row):
        return [row, *(way(case.parents[row][0]) if case.parents[row] else [])]

    shared = [row for row in way(gold) if row in way(predicted)]
    to_gold, to_predicted = (way(row).index(shared[0]) if shared else 0 for row in (gold, predicted))
    eye = np.eye(len(case.parents), dtype=bool)
    found = hierarchical_scores(eye[[gold]], eye[[predicted]], case.taxonomy)
    assert found["lca_precision"] == (1 / (1 + to_predicted) if shared else 0)
    assert found["lca_recall"] == (1 / (1 + to_gold) if shared else 0)


@given(cases())
def test_curve_is_the_area_under_f1_at_each_threshold(case):
    curve = []
    for threshold in GRID:
        case.predicted = case.scores > threshold
        curve.append(of_closed(case)["hierarchical_f1"])
    area = sum((left + right) / 2 * 0.01 for left, right in pairwise(curve))
    found = curve_scores(case.labels, case.scores, case.taxonomy)
    assert found == {"hierarchical_f1_auc": pytest.approx(area, abs=1e-12)}


def test_an_ancestor_reached_twice_counts_once():
    diamond = build([[], [0], [0], [1, 2]])
    found = hierarchical_scores([[0, 0, 0, 1]], [[0, 1, 0, 0]], diamond)
    assert (found["hierarchical_precision"], found["hierarchical_recall"]) == (1, 0.5)


def test_worked_example():
    """Gold vision (0 > 1), predicted its sibling (0 > 2) and a root apart (3); then a right leaf without its parent."""
    taxonomy = build([[], [0], [0], []])
    found = hierarchical_scores([[1, 1, 0, 0], [1, 1, 0, 0]], [[1, 0, 1, 1], [0, 1, 0, 0]], taxonomy)
    assert found["hierarchical_precision"] == pytest.approx(3 / 5)
    assert found["hierarchical_recall"] == pytest.approx(3 / 4)
    assert found["consistent_micro_f1"] == pytest.approx(2 * 1 / (4 + 4))
    assert found["path_micro_f1"] == 0
    assert found["lca_precision"] == pytest.approx(2 / 4)
    assert found["lca_recall"] == pytest.approx(2 / 3)
    assert found["violations"] == 0.5


@given(cases())
def test_edges_move_values_up_and_down(case):
    edges = Edges(case.taxonomy)
    values, chosen = case.scores.T, case.labels.T
    n = len(case.parents)
    below = [[row for row in range(n) if row == top or top in ancestors(case.parents, row)] for top in range(n)]
    above = [sorted({row} | ancestors(case.parents, row)) for row in range(n)]
    children = [[row for row in range(n) if top in case.parents[row]] for top in range(n)]
    assert (edges.close(values) == [values[rows].max(axis=0) for rows in below]).all()
    assert (edges.with_child(chosen) == [chosen[rows].any(axis=0) for rows in children]).all()
    assert (edges.least_above(chosen) == [chosen[rows].all(axis=0) for rows in above]).all()


def test_a_label_may_have_very_many_children() -> None:
    rng = np.random.default_rng(0)
    parents = [[]] * 3 + [[int(rng.integers(0, min(row, 5)))] for row in range(3, 400)]
    taxonomy, chosen = build(parents), rng.random((400, 16)) < 0.02
    closed = Edges(taxonomy).close(chosen)
    below = Edges(taxonomy).with_child(chosen)
    for document in range(16):
        rows = set(np.flatnonzero(chosen[:, document]).tolist())
        assert set(np.flatnonzero(closed[:, document]).tolist()) == closure(parents, rows)
        assert set(np.flatnonzero(below[:, document]).tolist()) == {parent for row in rows for parent in parents[row]}
