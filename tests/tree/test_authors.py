"""The released code's builder: every tree, level size, entropy and gain the reference took from that code."""

from math import log2

import pytest
from hypothesis import assume, given

from hill.tree import CodingTree, build_authors
from hill.tree._loops import insert_level, leaf_siblings
from hill.tree.authors import leaf_up, root_down, split
from tests.tree.operations import Draft
from tests.tree.test_coding_tree import (
    BRIDGE,
    NYT,
    PATH_6,
    RCV1,
    SEEDS,
    STAR_6,
    WOS,
    drafted,
    graph_of,
    label_graph,
    random_graph,
)

TRIANGLES = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]
BINARY_7 = [((i - 1) // 2, i) for i in range(1, 7)]
COMPLETE_4 = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]

# Level sizes from leaves to root and entropies, by height.
TABLE = {
    "wos": [
        ((141, 1), 5.7792),
        ((141, 7, 1), 3.2869),
        ((141, 79, 7, 1), 3.0841),
        ((141, 107, 79, 7, 1), 3.0278),
        ((141, 127, 107, 79, 7, 1), 3.0089),
        ((141, 136, 127, 107, 79, 7, 1), 3.0060),
        ((141, 141, 140, 136, 127, 107, 79, 7, 1), 3.0056),
    ],
    "rcv1": [
        ((103, 1), 5.9012),
        ((103, 8, 1), 3.4737),
        ((103, 8, 4, 1), 3.3971),
        ((103, 38, 8, 4, 1), 2.3725),
        ((103, 78, 38, 8, 4, 1), 2.2695),
        ((103, 97, 78, 38, 8, 4, 1), 2.2577),
        ((103, 103, 101, 97, 78, 38, 8, 4, 1), 2.2564),
    ],
    "nyt": [
        ((166, 1), 6.8176),
        ((166, 18, 1), 3.5327),
        ((166, 18, 4, 1), 3.4285),
        ((166, 59, 18, 4, 1), 2.4493),
        ((166, 114, 59, 18, 4, 1), 2.2562),
        ((166, 153, 114, 59, 18, 4, 1), 2.2372),
        ((166, 166, 165, 153, 114, 59, 18, 4, 1), 2.2362),
    ],
}
RUNS = {"wos": WOS, "rcv1": RCV1, "nyt": NYT}


@pytest.mark.parametrize(
    ("name", "sizes", "bits"), [(name, sizes, bits) for name, rows in TABLE.items() for sizes, bits in rows]
)
def test_level_sizes_and_entropies_of_the_table(name, sizes, bits):
    graph = label_graph(RUNS[name])
    tree = build_authors(graph, len(sizes) - 1)
    assert tree.sizes == sizes
    assert round(tree.entropy(graph), 4) == bits


@pytest.mark.parametrize(
    ("name", "near_leaves", "per_vertex", "near_root", "per_child"),
    [
        ("wos", 0.1970, 0.001397, 0, 0),
        ("rcv1", 0.9607, 0.009327, 0.0755, 0.009442),
        ("nyt", 0.9157, 0.005516, 0.1033, 0.005739),
    ],
)
def test_gains_of_the_first_growth_decision(name, near_leaves, per_vertex, near_root, per_child):
    graph = label_graph(RUNS[name])
    flat = CodingTree([[0] * len(graph)])
    tree = insert_level(flat, 0, split(leaf_siblings(graph, flat)))
    leaves, root = leaf_up(graph, tree), root_down(graph, tree)
    assert leaves.gain == pytest.approx(per_vertex, abs=5e-7)
    assert leaves.gain * len(graph) == pytest.approx(near_leaves, abs=5e-5)
    assert root.gain == pytest.approx(per_child, abs=5e-7)
    assert root.gain * tree.sizes[1] == pytest.approx(near_root, abs=5e-5)


def smoothed(draft: Draft, node: int, parent_volume: float) -> float:
    """A node's term of the entropy, with 1 added to its volume."""
    return -draft.cut(node) / draft.graph.volume * log2((draft.volume(node) + 1) / parent_volume)


@given(SEEDS)
def test_gains_are_old_less_new_entropy_as_the_released_code_smooths_them(seed):
    graph = random_graph(seed, max_size=16)
    assume(graph.volume > 0)
    flat = CodingTree([[0] * len(graph)])
    tree = insert_level(flat, 0, split(leaf_siblings(graph, flat)))
    draft = drafted(graph, tree)
    children, leaves = draft.children(draft.root), range(len(graph))

    root = root_down(graph, tree)
    grown = drafted(graph, insert_level(tree, 1, root.middle))
    old = sum(smoothed(draft, node, graph.volume) for node in children)
    new = sum(smoothed(grown, v, grown.volume(p) + 1) for v, p in grown.parents.items() if grown.depth(v) < 3)
    assert root.gain == pytest.approx((old - new) / len(children) if len(children) > 2 else 0, abs=1e-12)

    near_leaves = leaf_up(graph, tree)
    grown = drafted(graph, insert_level(tree, 0, near_leaves.middle))
    old = sum(smoothed(draft, leaf, draft.volume(draft.parents[leaf]) + 1) for leaf in leaves)
    new = sum(smoothed(grown, v, grown.volume(p) + 1) for v, p in grown.parents.items() if grown.depth(v) > 1)
    assert near_leaves.gain == pytest.approx((old - new) / len(graph), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "edges", "height", "nested", "bits"),
    [
        (4, PATH_6[:3], 1, [0, 1, 2, 3], 1.918296),
        (4, PATH_6[:3], 2, [[0, 1], [2, 3]], 1.251629),
        (6, PATH_6, 1, [0, 1, 2, 3, 4, 5], 2.521928),
        (6, PATH_6, 2, [[0, 1], [2, 3], [4, 5]], 1.562756),
        (6, PATH_6, 3, [[[0, 1], [2, 3]], [[4, 5]]], 1.459841),
        (6, BRIDGE, 1, [0, 1, 2, 3, 4, 5], 2.556657),
        (6, BRIDGE, 2, [[0, 1, 2, 3], [4, 5]], 2.021076),
        (6, TRIANGLES, 2, [[0, 1, 2], [3, 4, 5]], 1.584963),
        (6, TRIANGLES, 3, [[[0, 1], [2]], [[3, 4], [5]]], 1.389975),
        (6, STAR_6, 1, [0, 1, 2, 3, 4, 5], 2.160964),
        (6, STAR_6, 2, [[0, 1, 2, 3], [4], [5]], 1.967807),
        (6, STAR_6, 3, [[[0, 1], [2], [3]], [[4]], [[5]]], 1.884800),
        (7, BINARY_7, 2, [[0], [1, 3, 4], [2, 5, 6]], 1.783792),
        (7, BINARY_7, 3, [[[0], [1, 3, 4]], [[2, 5, 6]]], 1.654190),
        (4, COMPLETE_4, 2, [[0, 1], [2, 3]], 1.666667),
    ],
)
def test_trees_of_the_reference(n, edges, height, nested, bits):
    graph = graph_of(n, edges)
    tree = build_authors(graph, height)
    assert tree.nested() == nested
    assert tree.entropy(graph) == pytest.approx(bits, abs=1e-6)


def test_rcv1_clusters_of_the_reference():
    graph = label_graph(RCV1)
    tree = build_authors(graph, 2)
    sizes = sorted((len(tree.subset(1, node)) for node in range(tree.sizes[1])), reverse=True)
    assert sizes == [34, 23, 14, 10, 10, 4, 4, 4]


def test_wos_inner_clusters_are_each_area_and_its_first_leaves():
    graph = label_graph(WOS)
    tree = build_authors(graph, 3)
    for area in range(7):
        inner = tree.subset(1, int(tree.levels[1][area])).tolist()
        leaves = graph.indices[graph.indptr[area] : graph.indptr[area + 1]].tolist()
        assert len(inner) > 1 and inner == [area, *leaves[: len(inner) - 1]]
