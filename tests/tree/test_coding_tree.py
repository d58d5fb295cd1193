"""Graphs, coding trees, structural entropy and the paper's operations, compared with slow, obvious code."""

import json
from itertools import combinations, pairwise
from math import log2

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hill.errors import TaxonomyError
from hill.tree import CodingTree, Graph, entropy_by_level, structural_entropy
from tests.tree.operations import Draft, align, compress, compress_gain, delete, delete_cost, merge

SEEDS = st.integers(0, 2**32 - 1)

# The label graphs of three public data sets: for each run of labels in order, their parent (-1: none) and their number.
WOS = [(-1, 7), (0, 17), (1, 53), (2, 11), (3, 16), (4, 9), (5, 9), (6, 19)]
# fmt: off
RCV1 = [
    (-1, 4), (0, 18), (8, 2), (22, 1), (10, 4), (11, 3), (16, 3), (18, 1), (20, 1), (1, 10), (38, 1), (39, 2), (40, 3),
    (41, 2), (42, 3), (43, 1), (44, 3), (2, 23), (62, 9), (3, 4), (96, 2), (97, 3),
]
NYT = [
    (-1, 4), (3, 13), (8, 6), (21, 9), (2, 3), (34, 1), (35, 15), (0, 10), (53, 2), (61, 2), (64, 7), (71, 4), (12, 5),
    (10, 1), (81, 1), (68, 2), (13, 7), (85, 5), (84, 6), (100, 2), (7, 5), (107, 1), (69, 4), (1, 1), (16, 6), (54, 1),
    (122, 1), (9, 2), (124, 2), (63, 6), (32, 1), (134, 1), (65, 2), (56, 3), (138, 1), (55, 2), (115, 3), (139, 1),
    (140, 1), (135, 1), (108, 1), (150, 2), (60, 3), (105, 1), (109, 1), (14, 1), (52, 1), (145, 2), (125, 1), (80, 1),
    (15, 1), (127, 1),
]
# fmt: on

BRIDGE = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
PATH_6 = [(i, i + 1) for i in range(5)]
STAR_6 = [(0, i) for i in range(1, 6)]


def graph_of(n: int, edges: list[tuple[int, int]], weights=None) -> Graph:
    """The graph with these edges, each given once."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    values = np.ones(len(ends)) if weights is None else np.asarray(weights, dtype=np.float64)
    matrix = sp.coo_array((values, (ends[:, 0], ends[:, 1])), shape=(n, n))
    return Graph.from_adjacency(matrix + matrix.T)


def label_graph(runs: list[tuple[int, int]]) -> Graph:
    """The forest of a data set's labels."""
    parents = [parent for parent, count in runs for _ in range(count)]
    return graph_of(len(parents), [(parent, label) for label, parent in enumerate(parents) if parent >= 0])


def random_graph(seed: int, max_size: int = 10) -> Graph:
    """A tree, a sparse or a dense graph, plain or weighted; sparse ones fall apart and leave vertices alone."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, max_size + 1))
    if rng.random() < 0.4:
        edges = [(int(rng.integers(i)), i) for i in range(1, n)]
    else:
        share = rng.choice([0.15, 0.3, 0.7])
        edges = [pair for pair in combinations(range(n), 2) if rng.random() < share]
    weights = rng.uniform(0.1, 3, len(edges)) if rng.random() < 0.4 else None
    return graph_of(n, edges, weights)


def random_tree(seed: int, n: int) -> CodingTree:
    """A coding tree of height 1 to 4 whose nodes are drawn at random."""
    rng = np.random.default_rng(seed)
    parents, size = [], n
    for _ in range(int(rng.integers(0, 4))):
        array = np.unique(rng.integers(0, max(1, size), size), return_inverse=True)[1]
        parents.append(array)
        size = int(array.max()) + 1
    return CodingTree([*parents, np.zeros(size, dtype=int)])


def slow_entropy(graph: Graph, tree: CodingTree) -> float:
    """The definition, node by node and edge by edge."""
    total = 0.0
    for level in range(tree.height):
        for node in range(tree.sizes[level]):
            inside = set(tree.subset(level, node).tolist())
            parent = set(tree.subset(level + 1, int(tree.parents[level][node])).tolist())
            cut = sum(w for i, j, w in zip(*graph.edges(), strict=True) if (i in inside) != (j in inside))
            if cut:
                ratio = sum(graph.degrees[list(inside)]) / sum(graph.degrees[list(parent)])
                total -= cut / graph.volume * log2(ratio)
    return float(total)


def test_a_graph_is_sorted_symmetric_and_without_loops():
    matrix = sp.coo_array(([1.0, 0.5, 1.5, 2.0, 9.0, 0.0], ([2, 0, 0, 1, 1, 0], [0, 2, 2, 2, 1, 1])), shape=(3, 3))
    matrix = sp.coo_array(
        (np.append(matrix.data, [1.0, 2.0]), (np.append(matrix.row, [2, 2]), np.append(matrix.col, [0, 1])))
    )
    graph = Graph.from_adjacency(matrix)
    assert graph.indptr.tolist() == [0, 1, 2, 4]
    assert graph.indices.tolist() == [2, 2, 0, 1]
    assert graph.weights.tolist() == [2.0, 2.0, 2.0, 2.0]
    assert graph.degrees.tolist() == [2.0, 2.0, 4.0] and graph.volume == 8.0
    assert [array.dtype for array in (graph.indptr, graph.indices, graph.weights)] == [np.int64, np.int64, np.float64]
    assert [array.tolist() for array in graph.edges()] == [[0, 1], [2, 2], [2.0, 2.0]]
    assert repr(graph) == "Graph(3 vertices, 2 edges, volume 8)"


@given(SEEDS)
def test_dense_and_sparse_input_agree(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 7))
    dense = np.triu(rng.integers(0, 3, (n, n)), 1)
    dense = dense + dense.T
    for read in (dense.tolist() if n else dense, sp.csr_matrix(dense), sp.coo_array(dense)):
        graph = Graph.from_adjacency(read)
        assert len(graph) == n and graph.volume == dense.sum()
        assert np.array_equal(sp.csr_array((graph.weights, graph.indices, graph.indptr), shape=(n, n)).todense(), dense)


@pytest.mark.parametrize(
    ("adjacency", "message"),
    [
        ([[0, 1, 0], [1, 0, 0]], r"shape \(2, 3\); expected a square matrix"),
        ([0, 1], r"shape \(2,\); expected a square matrix"),
        ([[0, 1], [2, 0]], r"edge \(0, 1\) has weight 1.0 but \(1, 0\) has 2.0; expected a symmetric matrix"),
        ([[0, 0, 1e9], [0, 0, 0.1], [1e9, 0, 0]], r"edge \(1, 2\) has weight 0.1 but \(2, 1\) has 0.0"),
        ([[0, -1], [-1, 0]], r"edge \(0, 1\) has weight -1.0; expected a finite number of at least 0"),
        ([[0, 1], [float("nan"), 0]], r"edge \(1, 0\) has weight nan"),
        (sp.csr_matrix([[0, np.inf], [np.inf, 0]]), r"edge \(0, 1\) has weight inf"),
        ([[0, 1e308], [1e308, 0]], "add up to more than a float can store"),
    ],
)
def test_an_invalid_graph_raises(adjacency, message):
    with pytest.raises(TaxonomyError, match=message):
        Graph.from_adjacency(adjacency)


def test_sums_that_differ_by_rounding_are_symmetric():
    there, back = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert there != back
    graph = Graph.from_adjacency([[0, there], [back, 0]])
    assert graph.weights[0] == graph.weights[1]


def test_properties_of_a_coding_tree():
    tree = CodingTree([[1, 0, 1, 2], [0, 0, 1], [0, 0]])
    assert (tree.height, tree.sizes) == (3, (4, 3, 2, 1))
    assert [level.tolist() for level in tree.levels] == [[0, 1, 2, 3], [1, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert tree.levels[1].tolist() == [1, 0, 1, 2]
    assert tree.subset(1, 1).tolist() == [0, 2] and tree.subset(3, 0).tolist() == [0, 1, 2, 3]
    assert tree.nested() == [[[1], [0, 2]], [[3]]]
    assert tree.canonical().nested() == [[[0, 2], [1]], [[3]]]
    assert repr(tree) == "CodingTree(height=3, sizes=(4, 3, 2, 1))"
    with pytest.raises(ValueError, match="read-only"):
        tree.parents[0][0] = 2


@given(SEEDS, st.integers(1, 9))
def test_every_level_is_a_partition_of_the_vertices(seed, n):
    tree = random_tree(seed, n)
    for level, size in enumerate(tree.sizes):
        subsets = [tree.subset(level, node).tolist() for node in range(size)]
        assert all(subsets) and sorted(vertex for subset in subsets for vertex in subset) == list(range(n))
    for level, array in enumerate(tree.parents):
        for node, parent in enumerate(array):
            assert set(tree.subset(level, node)) <= set(tree.subset(level + 1, parent))


@given(SEEDS, st.integers(1, 9))
def test_renumbered_nodes_make_an_equal_canonical_tree(seed, n):
    tree = random_tree(seed, n)
    rng = np.random.default_rng(seed)
    orders = [np.arange(n), *(rng.permutation(size) for size in tree.sizes[1:])]
    shuffled = CodingTree(
        [above[array][np.argsort(order)] for array, (order, above) in zip(tree.parents, pairwise(orders), strict=True)]
    )
    assert shuffled.canonical() == tree.canonical()
    assert hash(shuffled.canonical()) == hash(tree.canonical())
    firsts = [
        [int(tree.canonical().subset(level, node)[0]) for node in range(size)] for level, size in enumerate(tree.sizes)
    ]
    assert all(first == sorted(first) for first in firsts)
    assert CodingTree.from_json(tree.to_json()) == tree


def test_trees_with_other_subsets_differ():
    tree = CodingTree([[0, 0, 1], [0, 0]])
    assert tree != CodingTree([[0, 1, 1], [0, 0]])
    assert CodingTree([[0, 0, 0]]) != CodingTree([[0, 0, 0], [0]])
    assert tree != "tree"
    assert json.loads(tree.to_json()) == {"parents": [[0, 0, 1], [0, 0]]}


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "no level under its root"),
        ([[0, 1]], "node 1 on level 0 has parent 1; expected 0 to 0, the nodes on level 1"),
        ([[0, -1], [0]], "node 1 on level 0 has parent -1"),
        ([[0, 0], [0, 0]], "node 1 on level 1 has no child"),
        ([[], [0]], r"levels have \(0, 1, 1\) nodes but there is no leaf"),
        ([[0.0, 0.5]], "parents of level 0 are float64"),
        ([[[0, 0]]], r"shape \(1, 2\); expected one integer per node"),
    ],
)
def test_an_invalid_tree_raises(parents, message):
    with pytest.raises(TaxonomyError, match=message):
        CodingTree(parents)


@pytest.mark.parametrize("document", ["", "[]", '{"parent": []}', "null"])
def test_json_that_holds_no_tree_is_refused(document):
    with pytest.raises(TaxonomyError, match="not a coding tree"):
        CodingTree.from_json(document)


def test_a_graph_of_another_size_is_refused():
    with pytest.raises(TaxonomyError, match="the tree has 2 leaves but the graph has 3 vertices"):
        CodingTree([[0, 0]]).entropy(graph_of(3, []))


@pytest.mark.parametrize("height", [1, 2, 4])
def test_no_vertex_and_one_vertex(height):
    empty = CodingTree([[]] * height)
    assert empty.sizes == (*[0] * height, 1) and empty.nested() == [] and empty.canonical() == empty
    assert CodingTree.from_json(empty.to_json()) == empty
    assert empty.entropy(graph_of(0, [])) == 0 and entropy_by_level(graph_of(0, []), empty).sum() == 0
    single = CodingTree([[0]] * height)
    assert single.sizes == (1,) * (height + 1) and single.entropy(graph_of(1, [])) == 0


@pytest.mark.parametrize(
    ("n", "edges", "parents", "bits"),
    [
        (4, PATH_6[:3], [[0] * 4], 1.918296),
        (4, PATH_6[:3], [[0, 0, 1, 1], [0, 0]], 1.251629),
        (6, PATH_6, [[0] * 6], 2.521928),
        (6, PATH_6, [[0, 0, 1, 1, 2, 2], [0, 0, 0]], 1.562756),
        (6, PATH_6, [[0, 0, 1, 1, 2, 2], [0, 0, 1], [0, 0]], 1.459841),
        (6, BRIDGE, [[0] * 6], 2.556657),
        (6, BRIDGE, [[0, 0, 0, 0, 1, 1], [0, 0]], 2.021076),
        (6, BRIDGE, [[0, 0, 0, 1, 1, 1], [0, 0]], 1.699514),
        (6, STAR_6, [[0] * 6], 2.160964),
        (6, STAR_6, [[0, 0, 0, 0, 1, 2], [0, 0, 0]], 1.967807),
    ],
)
def test_entropies_of_the_reference(n, edges, parents, bits):
    graph, tree = graph_of(n, edges), CodingTree(parents)
    for entropy in (tree.entropy, lambda g: entropy_by_level(g, tree).sum(), lambda g: slow_entropy(g, tree)):
        assert entropy(graph) == pytest.approx(bits, abs=1e-6)


@given(SEEDS)
def test_entropy_by_edges_by_definition_and_by_loops_agree(seed):
    graph = random_graph(seed)
    tree = random_tree(seed, len(graph))
    slow = slow_entropy(graph, tree)
    assert structural_entropy(graph, tree) == pytest.approx(slow, abs=1e-12)
    assert entropy_by_level(graph, tree).sum() == pytest.approx(slow, abs=1e-12)
    assert len(entropy_by_level(graph, tree)) == tree.height
    flat = CodingTree([np.zeros(len(graph), dtype=int)])
    assert 0 <= structural_entropy(graph, tree) <= slow_entropy(graph, flat) + 1e-12


@given(SEEDS)
def test_entropy_by_level_sums_the_terms_of_each_level(seed):
    graph = random_graph(seed)
    tree = random_tree(seed, len(graph))
    draft = drafted(graph, tree)
    for level, bits in enumerate(entropy_by_level(graph, tree)):
        nodes = [node for node in draft.parents if draft.depth(node) == tree.height - level]
        ratios = [draft.cut(v) * log2(draft.volume(v) / draft.volume(draft.parents[v])) for v in nodes if draft.cut(v)]
        assert bits == pytest.approx(-sum(ratios) / (graph.volume or 1), abs=1e-12)


@given(SEEDS, st.integers(0, 3))
def test_nodes_with_one_child_keep_the_entropy(seed, level):
    graph = random_graph(seed)
    tree = random_tree(seed, len(graph))
    level = min(level, tree.height)
    size = tree.sizes[level]
    lifted = CodingTree([*tree.parents[:level], np.arange(size), *tree.parents[level:]])
    assert lifted.entropy(graph) == pytest.approx(tree.entropy(graph), abs=1e-12)


def drafted(graph: Graph, tree: CodingTree) -> Draft:
    """The tree as a draft, its nodes made from the root down."""
    draft = Draft.flat(graph)
    for level in range(tree.height - 1, 0, -1):
        for node in range(tree.sizes[level]):
            mark = set(tree.subset(level, node).tolist())
            draft.insert([v for v in range(len(graph)) if v in mark], draft.parents[min(mark)])
    return draft


@given(SEEDS)
def test_a_draft_converts_back_to_its_tree(seed):
    graph = random_graph(seed)
    tree = random_tree(seed, len(graph))
    draft = drafted(graph, tree)
    assert draft.height == tree.height
    assert draft.to_tree().canonical() == tree.canonical()
    assert draft.entropy() == pytest.approx(slow_entropy(graph, tree), abs=1e-12)


@given(SEEDS)
def test_compress_gain_is_the_entropy_saved(seed):
    graph = random_graph(seed)
    draft = drafted(graph, random_tree(seed, len(graph)))
    inner = sorted(set(draft.parents.values()))
    for parent in inner:
        for node, other in combinations(draft.children(parent)[:4], 2):
            changed, gain = draft.copy(), compress_gain(draft, node, other)
            new = compress(changed, node, other)
            assert changed.children(new) == [node, other] and changed.parents[new] == parent
            assert gain >= -1e-12
            assert draft.entropy() - changed.entropy() == pytest.approx(gain, abs=1e-12)


@given(SEEDS)
def test_delete_cost_is_the_entropy_added(seed):
    graph = random_graph(seed)
    draft = drafted(graph, random_tree(seed, len(graph)))
    for node in set(draft.parents) & set(draft.parents.values()):
        changed, cost = draft.copy(), delete_cost(draft, node)
        delete(changed, node)
        assert node not in changed.parents
        assert all(changed.parents[child] == draft.parents[node] for child in draft.children(node))
        assert changed.entropy() - draft.entropy() == pytest.approx(cost, abs=1e-12)


@given(SEEDS)
def test_align_gives_leaves_one_depth_and_keeps_the_entropy(seed):
    graph = random_graph(seed)
    draft = drafted(graph, random_tree(seed, len(graph)))
    for node in list(set(draft.parents) & set(draft.parents.values()))[::2]:
        delete(draft, node)
    height, entropy = draft.height, draft.entropy()
    align(draft)
    assert {draft.depth(leaf) for leaf in range(len(graph))} == {height}
    align(draft, height + 1)
    assert {draft.depth(leaf) for leaf in range(len(graph))} == {height + 1}
    assert draft.entropy() == pytest.approx(entropy, abs=1e-12)


def test_merge_replaces_the_subtree_of_a_node():
    graph = graph_of(6, PATH_6)
    draft = Draft.flat(graph)
    left = draft.insert([0, 1, 2], draft.root)
    right = draft.insert([3, 4, 5], draft.root)
    part = draft.subtree(left)
    assert part.children(left) == [0, 1, 2] and part.height == 1
    compress(part, 0, 1)
    align(part)
    merge(draft, part)
    assert draft.height == 3 and draft.children(right) == [3, 4, 5]
    align(draft)
    assert draft.to_tree().nested() == [[[0, 1], [2]], [[3], [4], [5]]]
    assert draft.entropy() == pytest.approx(slow_entropy(graph, draft.to_tree()))


def test_invalid_operations_raise():
    draft = Draft.flat(graph_of(4, PATH_6[:3]))
    new = compress(draft, 0, 1)
    for pair in ((0, 2), (2, 2), (draft.root, 2), (77, 2)):
        with pytest.raises(TaxonomyError, match=f"nodes {pair[0]} and {pair[1]} are not two children of one node"):
            compress(draft, *pair)
    for node in (0, draft.root, 77):
        with pytest.raises(TaxonomyError, match=f"node {node} is the root, a leaf or not in the tree"):
            delete(draft, node)
    with pytest.raises(TaxonomyError, match=r"leaves have the depths \[1, 2\].*align first"):
        draft.to_tree()
    assert draft.parents[new] == draft.root
    assert Draft.flat(graph_of(0, [])).to_tree().sizes == (0, 1)
