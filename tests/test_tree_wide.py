"""Trees and pictures where a label has very many neighbours: the same merges and rows, found faster."""

import itertools
import time
from collections.abc import Callable
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from hill.taxonomy import Label, Taxonomy
from hill.tree import CodingTree, Graph, build_authors, build_tree, drawing
from hill.tree._authors_merge import merge_pairs
from hill.tree._common_levels import Stars, stars_at_leaves
from hill.tree.authors import star_degrees
from hill.tree.layout import taxonomy_layout
from tests.conftest import random_taxonomy
from tests.test_tree import SEEDS, graph_of


def slow_merges(stars: Stars, smoothing: float = 1.0) -> list[int]:
    """The parent of every node by the reference's words: the best pair of all, until a group has two children."""
    n, first = len(stars.volumes), len(stars.volumes) + len(stars.group_volumes)
    edges = list(zip(stars.sources.tolist(), stars.targets.tolist(), stars.weights.tolist(), strict=True))
    members = {node: {node} for node in range(n)}
    group = dict(enumerate(stars.groups.tolist()))
    parents = [*(n + g for g in stars.groups.tolist()), *range(n, first)]

    def between(a: set[int], b: set[int]) -> float:
        return sum(w for i, j, w in edges if (i in a and j in b) or (i in b and j in a))

    def change(one: int, other: int) -> float:
        both, total = 0.0, stars.group_volumes[group[one]]
        volumes = [sum(stars.volumes[v] for v in members[node]) for node in (one, other)]
        both = sum(volumes) + 2 * smoothing
        insides = [
            v - sum(w for i, j, w in edges if (i in members[node]) != (j in members[node]))
            for v, node in zip(volumes, (one, other), strict=True)
        ]
        kept = sum(i * log2(both / (v + smoothing)) for i, v in zip(insides, volumes, strict=True))
        return float((kept - 2 * between(members[one], members[other]) * log2(total / both)) / total)

    while True:
        size = {g: sum(group[node] == g for node in members) for g in set(group.values())}
        pairs = [
            (round(change(a, b), 11), a, b)
            for a in members
            for b in members
            if a < b and group[a] == group[b] and size[group[a]] > 2 and between(members[a], members[b])
        ]
        if not pairs:
            return parents
        _, a, b = min(pairs)
        new = len(parents)
        parents[a] = parents[b] = new
        parents.append(n + group[a])
        members[new], group[new] = members.pop(a) | members.pop(b), group[a]


def wide_graph(seed: int) -> Graph:
    """Some vertices with many neighbours, most of which are alike; whole weights keep sums exact."""
    draw = np.random.default_rng(seed)
    n, hubs = int(draw.integers(4, 13)), int(draw.integers(1, 4))
    place = draw.permutation(n)
    table = np.zeros((n, n))
    for vertex in range(hubs, n):
        for hub in draw.choice(hubs, size=int(draw.integers(1, hubs + 1)), replace=False):
            table[place[vertex], place[hub]] = draw.choice([1, 1, 1, 2])
    for _ in range(int(draw.integers(0, 3))):
        one, other = draw.choice(n, size=2, replace=False)
        table[one, other] = 1
    table = np.maximum(table, table.T)
    return Graph.from_adjacency(table)


def even_graph(seed: int) -> Graph:
    """Paths and stars of two or three joined by few edges: neighbours that grow together, and become large."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(6, 14))
    table = np.zeros((n, n))
    for vertex in range(1, n):
        table[vertex, max(0, vertex - int(draw.integers(1, 4)))] = 1
    for _ in range(int(draw.integers(0, n))):
        one, other = draw.choice(n, size=2, replace=False)
        table[one, other] = 1
    place = draw.permutation(n)
    return Graph.from_adjacency(np.maximum(table, table.T)[place][:, place])


@pytest.mark.parametrize("kind", [wide_graph, even_graph])
@pytest.mark.parametrize("large", [1, 2, 3, 4, 100])
@given(seed=SEEDS, groups=st.integers(1, 2))
def test_merges_are_those_of_the_reference(kind: Callable[[int], Graph], large: int, seed: int, groups: int) -> None:
    graph = kind(seed)
    tree = CodingTree([np.arange(len(graph)) % groups, np.zeros(groups, dtype=int)])
    stars = stars_at_leaves(graph, tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hill.tree._authors_pairs.LARGE", large)
        found = merge_pairs(stars, star_degrees(stars), 1.0)
    assert found.parents.tolist() == slow_merges(stars)


def test_a_label_with_very_many_children_takes_no_square_of_them() -> None:
    leaves = np.arange(1, 5_001)
    seconds = {}
    for n in (500, 5_000):
        graph = graph_of(n + 1, [(0, leaf) for leaf in leaves[:n].tolist()])
        start = time.process_time()
        tree = build_authors(graph, 3)
        seconds[n] = time.process_time() - start
        assert tree.sizes[0] == n + 1
    assert seconds[5_000] < 40 * max(seconds[500], 0.02), "ten times the labels, in a square a hundred times"


@given(SEEDS, st.integers(1, 3))
def test_a_taxonomy_is_drawn_in_the_order_of_a_walk(seed: int, most_parents: int) -> None:
    taxonomy = random_taxonomy(seed, n=20, most_parents=most_parents)
    layout, rows = taxonomy_layout(taxonomy), itertools.count()

    def walk(row: int, column: int) -> None:
        assert (layout.x[row], layout.y[row]) == (column, next(rows))
        for child in range(len(taxonomy)):
            if taxonomy.parents(child).tolist()[:1] == [row]:
                walk(child, column + 1)

    for root in taxonomy.roots.tolist():
        walk(root, 0)
    assert next(rows) == 20


def test_of_what_falls_on_the_same_rows_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.array([0.0, 1, 1, 1, 1, 2]), np.array([0.0, 1, 2, 3, 3, 3])
    assert drawing._seen(6, x, y).tolist() == [0, 1, 2, 4, 5], "places that are the same"
    monkeypatch.setattr(drawing, "FINEST", 3)
    assert drawing._seen(6, x, y).tolist() == [0, 1, 4, 5], "two rows to one"
    assert drawing._seen(6, x, y, x, np.arange(6.0)).tolist() == [0, 1, 3, 4, 5], "lines with other ends are kept"


def test_a_picture_of_many_labels_draws_no_more_than_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(drawing, "FINEST", 50)
    drawn, add = [], Axes.add_collection

    def counted(axes: Any, found: Any, *more: Any, **named: Any) -> Any:
        drawn.append(len(found.get_paths()))
        return add(axes, found, *more, **named)

    monkeypatch.setattr(Axes, "add_collection", counted)
    taxonomy = Taxonomy([Label("root", "Root"), *(Label(f"l{i}", f"label {i}", ("root",)) for i in range(1_000))])
    drawing.draw_tree(taxonomy, build_tree(taxonomy, 3), tmp_path / "tree.png")
    lines, *_, blocks = drawn
    assert 40 < lines <= 51 and 50 < blocks < 200
