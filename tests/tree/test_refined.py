"""The refined builder, compared with brute force, closed forms, the other builders, and slow versions of its steps."""

import json
import os
import subprocess
import sys
import time
from functools import cache
from itertools import combinations_with_replacement, pairwise
from math import log2

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from hill.errors import ConfigError
from hill.tree import CodingTree, Graph, build_authors, build_paper, build_refined, structural_entropy
from hill.tree._loops import COMPILED
from hill.tree.refined import Level, choose_nodes, contract, cost, cut, leaf_level, move, move_level, split
from tests.conftest import ROOT
from tests.tree.test_coding_tree import BRIDGE, NYT, RCV1, SEEDS, WOS, graph_of, label_graph, random_graph, random_tree

FEW = settings(max_examples=8)


def entropy(graph: Graph, height: int) -> float:
    return structural_entropy(graph, build_refined(graph, height))


def level_of(graph: Graph) -> Level:
    return Level(graph.indptr, graph.indices, graph.weights, graph.degrees, np.zeros(len(graph)))


def renamed(graph: Graph, order: np.ndarray) -> Graph:
    matrix = sp.csr_array((graph.weights, graph.indices, graph.indptr), shape=(len(graph), len(graph)))
    return Graph.from_adjacency(matrix[order][:, order])


def star(leaves: int) -> Graph:
    return graph_of(leaves + 1, [(0, leaf) for leaf in range(1, leaves + 1)])


@cache
def partitions(n: int) -> list[list[int]]:
    """All partitions of n elements."""
    if n == 1:
        return [[0]]
    return [[*head, group] for head in partitions(n - 1) for group in range(max(head) + 2)]


def optimum_of_height_2(graph: Graph) -> float:
    sources, targets, weights = graph.edges()
    groups = np.array(partitions(len(graph)))
    volumes = np.stack([((groups == group) * graph.degrees).sum(axis=1) for group in range(len(graph))], axis=1)
    inside = np.take_along_axis(volumes, groups[:, sources], axis=1)
    meet = np.where(groups[:, sources] == groups[:, targets], inside, graph.volume)
    degrees = graph.degrees[graph.degrees > 0]
    edges = (2 * weights * np.log2(meet)).sum(axis=1).min()
    return float(edges - (degrees * np.log2(degrees)).sum()) / graph.volume


def optimum_of_star(leaves: int, height: int) -> float:
    """Only nodes with the centre have edges inside: a chain of growing numbers of leaves, and all chains are tried."""
    whole = 2 * leaves

    def chain_cost(chain: tuple[int, ...]) -> float:
        steps = zip((0, *chain), (*chain, leaves), strict=True)
        return sum((more - fewer) * log2(leaves + more) for fewer, more in steps)

    chains = combinations_with_replacement(range(leaves + 1), height - 1)
    return 2 * min(map(chain_cost, chains)) / whole - leaves * log2(leaves) / whole


def test_small_graphs_reach_the_optimum_of_height_2():
    graphs = [graph for graph in (random_graph(seed, 8) for seed in range(130)) if graph.volume][:100]
    gaps = np.array([entropy(graph, 2) - optimum_of_height_2(graph) for graph in graphs])
    assert len(gaps) == 100
    assert gaps.min() > -1e-9
    assert (gaps < 1e-9).sum() >= 97
    assert gaps.max() < 0.1


@pytest.mark.parametrize(
    ("runs", "height", "max_entropy"),
    [
        pytest.param(WOS, 2, 3.2869, id="wos-2"),
        pytest.param(RCV1, 2, 2.7943, id="rcv1-2"),
        pytest.param(NYT, 2, 2.8814, id="nyt-2"),
        pytest.param(WOS, 3, 3.0782, id="wos-3"),
        pytest.param(RCV1, 3, 2.4296, id="rcv1-3"),
        pytest.param(NYT, 3, 2.3145, id="nyt-3"),
    ],
)
def test_label_graphs_of_the_paper(runs, height, max_entropy):
    assert round(entropy(label_graph(runs), height), 4) <= max_entropy


@pytest.mark.parametrize("height", [2, 3, 4])
@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 17])
def test_stars_reach_the_optimum(leaves, height):
    assert entropy(star(leaves), height) == pytest.approx(optimum_of_star(leaves, height), abs=1e-9)


def test_a_large_star_is_fast_and_reaches_the_optimum():
    leaves = 40_000
    graph = star(leaves)
    entropy(star(3), 2)  # compiles
    start = time.process_time()
    found = entropy(graph, 2)
    seconds = time.process_time() - start
    inner = np.arange(leaves + 1)
    paid = inner * np.log2(leaves + inner) + (leaves - inner) * np.log2(2 * leaves)
    assert found == pytest.approx(paid.min() / leaves - log2(leaves) / 2, abs=1e-9)
    assert seconds < 5


def test_the_other_builders_are_never_better():
    for seed in range(10):
        graph = random_graph(seed, 25)
        for height in (2, 3, 4):
            others = (structural_entropy(graph, build(graph, height)) for build in (build_paper, build_authors))
            assert entropy(graph, height) <= min(others) + 1e-9


@FEW
@given(SEEDS)
def test_entropy_does_not_increase_with_height(seed):
    graph = random_graph(seed, 16)
    found = [entropy(graph, height) for height in range(1, 6)]
    assert all(lower <= upper + 1e-9 for upper, lower in pairwise(found))
    assert found[0] == pytest.approx(structural_entropy(graph, CodingTree([np.zeros(len(graph), int)])))
    assert found[-1] >= 0


@FEW
@given(SEEDS, SEEDS)
def test_the_order_of_vertices_does_not_matter(seed, other):
    graph = random_graph(seed, 16)
    again = renamed(graph, np.random.default_rng(other).permutation(len(graph)))
    for height in (2, 3):
        assert entropy(again, height) == pytest.approx(entropy(graph, height), abs=1e-9)


@pytest.mark.parametrize("runs", [WOS, RCV1, NYT], ids=["wos", "rcv1", "nyt"])
def test_renamed_forests_give_the_same_tree(runs):
    graph = label_graph(runs)
    again = renamed(graph, np.random.default_rng(1).permutation(len(graph)))
    (level, order), (same, other) = leaf_level(graph), leaf_level(again)
    assert all(map(np.array_equal, level, same))
    trees = build_refined(graph, 3), build_refined(again, 3)
    parents = [tree.parents[0][names] for tree, names in zip(trees, (order, other), strict=True)]
    first, second = (CodingTree([p, *t.parents[1:]]).canonical() for p, t in zip(parents, trees, strict=True))
    assert first == second


@pytest.mark.parametrize("tail", range(6))
def test_ambiguous_vertices_of_graphs_with_cycles_are_distinguished(tail):
    # Two equal paths from 1 to 2, and a tail in the middle: from its end, a walk enters both paths at both ends.
    edges = [(0, 1), (0, 2), (1, 3), (1, 4), (3, 5), (4, 6), (5, 2), (6, 2), (2, 7), (0, 8)]
    edges += [(8 + i, 9 + i) for i in range(tail)]
    graph = graph_of(9 + tail, edges)
    for seed in range(10):
        again = renamed(graph, np.random.default_rng(seed).permutation(len(graph)))
        assert all(map(np.array_equal, leaf_level(graph)[0], leaf_level(again)[0]))


def test_trees_that_keep_exchangeable_leaves_together_are_equal():
    graph = label_graph(WOS)
    order = np.random.default_rng(0).permutation(len(graph))
    tree, again = build_refined(graph, 2), build_refined(renamed(graph, order), 2)
    back = CodingTree([again.parents[0][np.argsort(order)], *again.parents[1:]])
    assert back.canonical() == tree.canonical()
    assert tree.sizes == (141, 7, 1)


@FEW
@given(SEEDS)
def test_building_twice_gives_the_same_tree(seed):
    graph = random_graph(seed, 20)
    assert build_refined(graph, 3) == build_refined(graph, 3)


@FEW
@given(SEEDS, st.sampled_from([-900, -3, 5, 900]))
def test_the_scale_of_weights_does_not_matter(seed, power):
    graph = random_graph(seed, 40)
    unit = 2.0**power
    scaled = Graph(graph.indptr, graph.indices, graph.weights * unit, graph.degrees * unit, graph.volume * unit)
    assert build_refined(scaled, 3) == build_refined(graph, 3)


@given(SEEDS, SEEDS)
def test_cost_is_entropy_up_to_scale_and_constant(seed, other):
    graph = random_graph(seed)
    tree = random_tree(other, len(graph))
    if graph.volume:
        degrees = graph.degrees[graph.degrees > 0]
        constant = float((degrees * np.log2(degrees)).sum())
        paid = 2 * cost(level_of(graph), list(tree.parents))
        assert (paid - constant) / graph.volume == pytest.approx(structural_entropy(graph, tree), abs=1e-9)


@given(SEEDS, SEEDS, st.booleans())
def test_moves_return_the_change_of_the_cost(seed, other, dissolve):
    graph = random_graph(seed, 14)
    tree = random_tree(other, len(graph))
    if graph.volume and tree.height > 1:
        level, parents = level_of(graph), list(tree.parents)
        inner = np.zeros(len(graph))
        if dissolve:
            below, level = parents[0], contract(level, parents[0], tree.sizes[1])
            parents, inner = [np.arange(tree.sizes[1]), *parents[1:]], level.inner
        after, change = move_level(level, inner, parents, 1e-9)
        if dissolve:
            after = [after[0][below], *after[1:]]
        CodingTree(after)
        before = cost(level_of(graph), list(tree.parents))
        assert cost(level_of(graph), after) - before == pytest.approx(change, abs=1e-7)
        assert change <= 0


@given(SEEDS, SEEDS)
def test_no_step_increases_the_cost(seed, other):
    graph = random_graph(seed, 14)
    tree = random_tree(other, len(graph))
    if graph.volume:
        level, parents = level_of(graph), list(tree.parents)
        shortened = cut(level, parents, tree.height, 0.1)
        assert cost(level, shortened) <= cost(level, parents) + 1e-9
        assert cost(level, move(level, parents, 1e-9)) <= cost(level, parents) + 1e-9


@given(SEEDS, SEEDS, st.integers(1, 5), st.sampled_from([0.001, 0.1, 2.0]))
def test_cut_keeps_the_best_choice_of_nodes(seed, other, height, tolerance):
    graph = random_graph(seed, 14)
    tree = random_tree(other, len(graph))
    if not graph.volume:
        return
    level = level_of(graph)
    ups, volumes, cuts = split(level, list(tree.parents), tolerance)
    assert cuts.sum() == pytest.approx(graph.volume / 2)
    logs = np.log2(np.where(volumes > 0, volumes, 1))
    children = {node: np.flatnonzero(ups == node).tolist() for node in range(len(ups))}

    @cache
    def least(node: int, above: int, left: int) -> float:
        dropped = cuts[node] * logs[above] + sum(least(child, above, left) for child in children[node])
        if not left or not children[node]:
            return dropped
        return min(dropped, cuts[node] * logs[node] + sum(least(child, node, left - 1) for child in children[node]))

    root = len(ups) - 1
    best = cuts[root] * logs[root] + sum(least(child, root, height - 1) for child in children[root])
    found = cut(level, list(tree.parents), height, tolerance)
    assert CodingTree(found).height == height
    assert cost(level, found) == pytest.approx(best, abs=1e-9)
    nearest, left = choose_nodes(ups, logs, cuts, height)
    assert left.min() >= 0 and (nearest[: len(graph)] >= len(graph)).all()


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("height", [1, 2, 4])
def test_graphs_without_edges_get_nodes_with_one_child(n, height):
    tree = build_refined(graph_of(n, []), height)
    assert tree.sizes == (*[n] * height, 1)


def test_two_vertices_gain_nothing_from_height():
    assert build_refined(graph_of(2, [(0, 1)]), 3).sizes == (2, 2, 2, 1)
    assert entropy(graph_of(2, [(0, 1)]), 3) == 1


def test_more_height_than_useful_adds_nodes_with_one_child():
    low, high = (build_refined(graph_of(6, BRIDGE), height) for height in (5, 40))
    assert high.height == 40
    assert high.sizes[:36] == (6,) * 36
    assert high.entropy(graph_of(6, BRIDGE)) == pytest.approx(low.entropy(graph_of(6, BRIDGE)))


def test_triangles_are_clusters_and_isolated_vertices_are_single():
    graph = graph_of(8, BRIDGE)
    assert build_refined(graph, 2).nested() == [[0, 1, 2], [3, 4, 5], [6], [7]]
    assert entropy(graph, 2) == pytest.approx(1.699514, abs=1e-6)


def test_clusters_follow_the_weights():
    square = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert build_refined(graph_of(4, square, [9, 1, 9, 1]), 2).nested() == [[0, 1], [2, 3]]
    assert build_refined(graph_of(4, square, [1, 9, 1, 9]), 2).nested() == [[0, 3], [1, 2]]


@pytest.mark.parametrize("height", [0, -3])
def test_a_height_below_1_raises(height):
    with pytest.raises(ConfigError, match=f"height is {height}; expected a whole number from 1"):
        build_refined(star(3), height)


PROGRAM = """
import json, sys
sys.path.insert(0, ".")
from hill.tree.refined import build_refined
from tests.tree.test_coding_tree import random_graph
print(json.dumps([build_refined(random_graph(seed, 9), 3).to_json() for seed in range(6)]))
"""


@pytest.mark.skipif(not COMPILED, reason="needs numba to compare with")
def test_with_and_without_numba_agree():
    environment = {**os.environ, "HILL_NO_NUMBA": "1"}
    command = [sys.executable, "-c", PROGRAM]
    plain = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(plain.stdout) == [build_refined(random_graph(seed, 9), 3).to_json() for seed in range(6)]
