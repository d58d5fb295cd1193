"""Trees and plots of labels with very many neighbours: fast algorithms, compared with slow ones."""

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
from hill.tree import CodingTree, Graph, build_authors, build_tree
from hill.tree import plot as drawing
from hill.tree._loops import Siblings, leaf_siblings
from hill.tree.authors import merge_pairs
from hill.tree.plot import taxonomy_layout
from tests.conftest import random_taxonomy
from tests.tree.test_coding_tree import SEEDS, graph_of


def slow_merges(siblings: Siblings, smoothing: float = 1.0) -> list[int]:
    """The parent of every node by the reference's words: the best pair of all, until a group has two children."""
    n, first = len(siblings.volumes), len(siblings.volumes) + len(siblings.group_volumes)
    edges = list(zip(siblings.sources.tolist(), siblings.targets.tolist(), siblings.weights.tolist(), strict=True))
    members = {node: {node} for node in range(n)}
    group = dict(enumerate(siblings.groups.tolist()))
    parents = [*(n + g for g in siblings.groups.tolist()), *range(n, first)]

    def between(a: set[int], b: set[int]) -> float:
        return sum(w for i, j, w in edges if (i in a and j in b) or (i in b and j in a))

    def change(one: int, other: int) -> float:
        both, total = 0.0, siblings.group_volumes[group[one]]
        volumes = [sum(siblings.volumes[v] for v in members[node]) for node in (one, other)]
        both = sum(volumes) + 2 * smoothing
        insides = [
            v - sum(w for i, j, w in edges if (i in members[node]) != (j in members[node]))
            for v, node in zip(volumes, (one, other), strict=True)
        ]
        within = sum(i * log2(both / (v + smoothing)) for i, v in zip(insides, volumes, strict=True))
        return float((within - 2 * between(members[one], members[other]) * log2(total / both)) / total)

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
    """Paths and siblings of two or three joined by few edges: neighbours that grow together, and become large."""
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
    siblings = leaf_siblings(graph, tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hill.tree.authors.LARGE", large)
        parents, *_ = merge_pairs(siblings)
    assert parents.tolist() == slow_merges(siblings)


def test_a_label_with_many_children_does_not_take_quadratic_time() -> None:
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
def test_the_taxonomy_layout_is_in_depth_first_order(seed: int, most_parents: int) -> None:
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


def test_elements_at_the_same_position_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.array([0.0, 1, 1, 1, 1, 2]), np.array([0.0, 1, 2, 3, 3, 3])
    assert drawing._visible(6, x, y).tolist() == [0, 1, 2, 4, 5], "places that are the same"
    monkeypatch.setattr(drawing, "MAX_ROWS", 3)
    assert drawing._visible(6, x, y).tolist() == [0, 1, 4, 5], "two rows to one"
    assert drawing._visible(6, x, y, x, np.arange(6.0)).tolist() == [0, 1, 3, 4, 5], "lines with other ends are kept"


def test_a_plot_of_many_labels_draws_visible_elements_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drawing, "MAX_ROWS", 50)
    drawn, add = [], Axes.add_collection

    def counted(axes: Any, found: Any, *more: Any, **named: Any) -> Any:
        drawn.append(len(found.get_paths()))
        return add(axes, found, *more, **named)

    monkeypatch.setattr(Axes, "add_collection", counted)
    taxonomy = Taxonomy([Label("root", "Root"), *(Label(f"l{i}", f"label {i}", ("root",)) for i in range(1_000))])
    drawing.draw_tree(taxonomy, build_tree(taxonomy, 3), tmp_path / "tree.png")
    lines, *_, blocks = drawn
    assert 40 < lines <= 51 and 50 < blocks < 200
