"""The paper's builder, compared with slow versions of Algorithms 1 and 2 and with reference values."""

import json
import os
import subprocess
import sys
import time
from itertools import combinations
from math import log2

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hill.errors import ConfigError
from hill.tree import CodingTree, Graph, build_authors, build_paper
from hill.tree._loops import COMPILED
from tests.conftest import ROOT
from tests.tree.operations import Draft, align, compress, delete, merge
from tests.tree.test_coding_tree import BRIDGE, NYT, PATH_6, RCV1, SEEDS, WOS, graph_of, label_graph, random_graph

BUILDERS = {"paper": build_paper, "authors": build_authors}


def gain(draft: Draft, node: int, other: int) -> float:
    """Saved by compress, times VOL / 2: the expression of the builder, so that equal pairs tie in both."""
    parent = draft.parents[node]
    return draft.between([node, other]) * log2(draft.volume(parent) / (draft.volume(node) + draft.volume(other)))


def cost(draft: Draft, node: int) -> float:
    """Added by delete, times VOL / 2."""
    weight = draft.between(draft.children(node))
    return weight * log2(draft.volume(draft.parents[node]) / draft.volume(node))


def slow_algorithm_2(draft: Draft, node: int) -> Draft:
    part = draft.subtree(node)
    while len(part.children(node)) > 2:
        pairs = [pair for pair in combinations(part.children(node), 2) if part.between(pair)]
        if not pairs:
            break
        compress(part, *min(pairs, key=lambda pair: (-gain(part, *pair), pair)))
    while part.height > 2:
        inner = set(part.parents) & set(part.parents.values())
        delete(part, min(inner, key=lambda v: (cost(part, v), v)))
    align(part, 2)
    return part


def slow_algorithm_1(graph: Graph, height: int) -> CodingTree:
    draft = Draft.flat(graph)
    if height > 1:
        merge(draft, slow_algorithm_2(draft, draft.root))
    while draft.height < height:
        near_root, near_leaves = draft.copy(), draft.copy()
        merge(near_root, slow_algorithm_2(draft, draft.root))
        for node in sorted({draft.parents[vertex] for vertex in range(len(graph))}):
            merge(near_leaves, slow_algorithm_2(draft, node))
        draft = near_root if near_root.entropy() < near_leaves.entropy() - 1e-12 else near_leaves
    return draft.to_tree().canonical()


@given(SEEDS, st.integers(1, 4))
def test_the_builder_follows_the_paper(seed, height):
    graph = random_graph(seed, max_size=12)
    assert build_paper(graph, height).nested() == slow_algorithm_1(graph, height).nested()


@pytest.mark.parametrize(("seed", "height"), [(100993, 3), (102638, 4), (103330, 4)])
def test_savings_within_rounding_errors_are_ties(seed, height):
    graph = random_graph(seed, max_size=14)
    assert build_paper(graph, height).nested() == slow_algorithm_1(graph, height).nested()


def test_the_builder_follows_the_paper_on_larger_graphs():
    rng = np.random.default_rng(0)
    tree = graph_of(45, [(int(rng.integers(i)), i) for i in range(1, 45)])
    pairs = [pair for pair in combinations(range(30), 2) if rng.random() < 0.12]
    for graph in (tree, graph_of(30, pairs), graph_of(30, pairs, rng.integers(1, 4, len(pairs)))):
        assert build_paper(graph, 3).nested() == slow_algorithm_1(graph, 3).nested()


def slow_compress(graph: Graph) -> tuple[dict[int, int], dict[int, float], dict[int, float]]:
    """The binary tree under root -1, looking at every pair each time: parents, volumes, weight between children."""
    volumes = dict(enumerate(graph.degrees.tolist())) | {-1: graph.volume}
    parents, cuts = dict.fromkeys(range(len(graph)), -1), {}
    near: dict[int, dict[int, float]] = {vertex: {} for vertex in range(len(graph))}
    for i, j, weight in zip(*(array.tolist() for array in graph.edges()), strict=True):
        near[i][j] = near[j][i] = weight
    while len(near) > 2:
        pairs = [(i, j, weight) for i in near for j, weight in near[i].items() if i < j]
        if not pairs:
            break
        ranked = ((-w * log2(graph.volume / (volumes[i] + volumes[j])), i, j) for i, j, w in pairs)
        _, i, j = min(ranked)
        new = len(parents)
        cuts[new], volumes[new], parents[new] = near[i][j], volumes[i] + volumes[j], -1
        parents[i] = parents[j] = new
        ends = near.pop(i), near.pop(j)
        near[new] = {k: ends[0].get(k, 0) + ends[1].get(k, 0) for k in ends[0].keys() | ends[1].keys() if k in near}
        for k, weight in near[new].items():
            near[k] = {v: w for v, w in near[k].items() if v not in (i, j)} | {new: weight}
    return parents, volumes, cuts


def slow_delete(parents: dict[int, int], volumes: dict[int, float], cuts: dict[int, float]) -> None:
    while any(parents[node] != -1 for node in cuts):
        node = min(cuts, key=lambda v: (cuts[v] * log2(volumes[parents[v]] / volumes[v]), v))
        parent, weight = parents.pop(node), cuts.pop(node)
        parents.update({child: parent for child, above in parents.items() if above == node})
        if parent != -1:
            cuts[parent] += weight


@pytest.mark.parametrize("kind", ["plain", "counted", "weighted"])
def test_large_sparse_graphs_against_a_search_of_every_pair(kind):
    rng = np.random.default_rng(7)
    ends = np.sort(rng.integers(0, 300, (1370, 2)), axis=1)
    edges = np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0)
    weights = {"plain": None, "counted": rng.integers(1, 4, len(edges)), "weighted": rng.uniform(0.1, 1, len(edges))}
    graph = graph_of(300, edges.tolist(), weights[kind])
    parents, volumes, cuts = slow_compress(graph)
    slow_delete(parents, volumes, cuts)
    expected = [parents[vertex] if parents[vertex] != -1 else -2 - vertex for vertex in range(300)]
    tree = CodingTree([np.unique(expected, return_inverse=True)[1], np.zeros(len(set(expected)), dtype=int)])
    assert build_paper(graph, 2) == tree.canonical()


# From-scratch, unsmoothed values of the reference with any node deleted (RCV1 comes out the same either way).
@pytest.mark.parametrize(
    ("runs", "height", "sizes", "bits"),
    [
        (WOS, 1, (141, 1), 5.7792),
        (WOS, 2, (141, 7, 1), 3.2869),
        (WOS, 3, (141, 79, 7, 1), 3.0841),
        (WOS, 4, (141, 107, 79, 7, 1), 3.0278),
        (WOS, 5, (141, 127, 107, 79, 7, 1), 3.0089),
        (WOS, 6, (141, 136, 127, 107, 79, 7, 1), 3.0060),
        (WOS, 8, (141, 141, 140, 136, 127, 107, 79, 7, 1), 3.0056),
        (RCV1, 1, (103, 1), 5.9012),
        (RCV1, 2, (103, 5, 1), 3.7746),
        (RCV1, 3, (103, 32, 5, 1), 2.4355),
        (NYT, 1, (166, 1), 6.8176),
        (NYT, 2, (166, 20, 1), 3.6010),
    ],
)
def test_values_of_the_reference(runs, height, sizes, bits):
    graph = label_graph(runs)
    tree = build_paper(graph, height)
    assert tree.sizes == sizes
    assert round(tree.entropy(graph), 4) == bits


def test_two_triangles_with_a_bridge_are_clusters():
    graph = graph_of(6, BRIDGE)
    assert build_paper(graph, 2).nested() == [[0, 1, 2], [3, 4, 5]]
    assert build_paper(graph, 2).entropy(graph) == pytest.approx(1.699514, abs=1e-6)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
class TestBothFaithfulBuilders:
    @given(seed=SEEDS, height=st.integers(1, 5))
    def test_every_height_is_reached_at_no_more_than_the_flat_entropy(self, build, seed, height):
        graph = random_graph(seed, max_size=20)
        tree = build(graph, height)
        assert tree.height == height and tree.sizes[0] == len(graph) and tree == tree.canonical()
        flat = CodingTree([np.zeros(len(graph), dtype=int)])
        assert 0 <= tree.entropy(graph) <= flat.entropy(graph) + 1e-12
        assert tree.entropy(graph) <= build(graph, 1).entropy(graph) + 1e-12

    @pytest.mark.parametrize("height", [0, -3])
    def test_a_height_below_1_raises(self, build, height):
        with pytest.raises(ConfigError, match=f"height is {height}; expected a whole number from 1"):
            build(graph_of(2, [(0, 1)]), height)

    @pytest.mark.parametrize("height", [1, 2, 3, 5])
    def test_nothing_to_split(self, build, height):
        assert build(graph_of(0, []), height).sizes == (*[0] * height, 1)
        assert build(graph_of(1, []), height).sizes == (1,) * (height + 1)
        for n, edges in ((2, [(0, 1)]), (2, []), (5, [])):
            tree = build(graph_of(n, edges), height)
            assert tree.sizes == (*[n] * height, 1)
            assert tree.entropy(graph_of(n, edges)) == len(edges)

    def test_height_1_is_the_root_over_all(self, build):
        assert build(graph_of(6, PATH_6), 1).nested() == [0, 1, 2, 3, 4, 5]

    def test_components_and_isolated_vertices_are_children_of_the_root(self, build):
        graph = graph_of(9, [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (7, 8)])
        assert build(graph, 2).nested() == [[0, 1, 2], [3, 4, 5], [6], [7, 8]]

    def test_more_height_than_useful_adds_nodes_with_one_child(self, build):
        graph = graph_of(4, PATH_6[:3])
        low, high = build(graph, 3), build(graph, 9)
        assert high.sizes[1:7] == (4,) * 6 and high.entropy(graph) == pytest.approx(low.entropy(graph))


def test_a_hub_does_not_take_quadratic_time():
    n = 50_000 if COMPILED else 2_000
    hub, leaves = np.zeros(n, dtype=int), np.arange(1, n + 1)
    star = sp.coo_array((np.ones(n), (hub, leaves)), shape=(n + 1, n + 1))
    graph = Graph.from_adjacency(star + star.T)
    build_paper(graph_of(6, PATH_6), 2)
    start = time.process_time()
    tree = build_paper(graph, 2)
    assert time.process_time() - start < 10, "a heap that rescans the hub takes minutes"
    with_hub = tree.subset(1, int(tree.levels[1][0]))
    assert tree.sizes[1] == 1 + (n + 1 - len(with_hub))


PROGRAM = """
import json
from hill.tree import build_authors, build_paper
from tests.tree.test_coding_tree import random_graph
graphs = [random_graph(seed, max_size=40) for seed in range(40)]
print(json.dumps([[build(g, k).to_json() for build in (build_paper, build_authors) for k in (2, 4)] for g in graphs]))
"""


def test_compiled_and_plain_python_agree_exactly():
    environment = os.environ | {"HILL_NO_NUMBA": "1" if COMPILED else "0", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True)
    for seed, documents in enumerate(json.loads(run.stdout)):
        graph = random_graph(seed, max_size=40)
        trees = [build(graph, height) for build in (build_paper, build_authors) for height in (2, 4)]
        assert [CodingTree.from_json(document) for document in documents] == trees
