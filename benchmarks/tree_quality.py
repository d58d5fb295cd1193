"""Random graphs for `bench_tree.py`, and the quality of the builders' trees on them."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from rich.console import Console
from rich.progress import track

from hill.tree import CodingTree, Graph, build_authors, build_paper, build_refined, structural_entropy

BUILDERS: dict[str, Callable[[Graph, int], CodingTree]] = {
    "paper": build_paper,
    "refined": build_refined,
    "authors": build_authors,
}
TOLERANCE = 1e-9

Ends = npt.NDArray[np.int64]


def graph_of(size: int, edges: Ends, weights: npt.NDArray[np.float64] | None = None) -> Graph:
    """Return the graph with these edges, each given once."""
    values = np.ones(len(edges)) if weights is None else weights
    matrix = sp.coo_array((values, (edges[:, 0], edges[:, 1])), shape=(size, size))
    return Graph.from_adjacency(matrix + matrix.T)


def random_tree(size: int, seed: int = 1) -> Graph:
    """Return a random recursive tree: every vertex except the first is attached to an earlier one."""
    child = np.arange(1, size)
    parent = (np.random.default_rng(seed).random(size - 1) * child).astype(np.int64)
    return graph_of(size, np.stack([parent, child], axis=1))


def random_graph(rng: np.random.Generator, kind: int, min_size: int, max_size: int) -> Graph:
    """Return a tree, a sparse, a dense or a weighted graph."""
    size = int(rng.integers(min_size, max_size + 1))
    if kind == 0:
        return random_tree(size, int(rng.integers(2**32)))
    edges = np.stack(np.triu_indices(size, 1), axis=1)
    edges = edges[rng.random(len(edges)) < (min(0.35, 3 / size), 0.5, 0.3)[kind - 1]]
    return graph_of(size, edges, rng.random(len(edges)) if kind == 3 else None)


def renamed(graph: Graph, order: Ends) -> Graph:
    """Return the graph with its vertices in another order."""
    matrix = sp.csr_array((graph.weights, graph.indices, graph.indptr), shape=(len(graph),) * 2)
    return Graph.from_adjacency(matrix[order][:, order])


def optimum(graph: Graph) -> float:
    """Return the lowest entropy of height 2, by enumerating all partitions of the vertices."""
    groups = np.zeros((1, 1), np.int64)
    for _ in range(1, len(graph)):
        groups = np.concatenate(
            [np.column_stack([groups, np.full(len(groups), g)]) for g in range(groups.shape[1] + 1)]
        )
        groups = groups[groups[:, -1] <= groups[:, :-1].max(axis=1) + 1]
    sources, targets, weights = graph.edges()
    volumes = np.stack([((groups == group) * graph.degrees).sum(axis=1) for group in range(len(graph))], axis=1)
    inside = np.take_along_axis(volumes, groups[:, sources], axis=1)
    lca_volumes = np.where(groups[:, sources] == groups[:, targets], inside, graph.volume)
    degrees = graph.degrees[graph.degrees > 0]
    return float(
        ((2 * weights * np.log2(lca_volumes)).sum(axis=1).min() - (degrees * np.log2(degrees)).sum()) / graph.volume
    )


def gaps(count: int, rng: np.random.Generator) -> Iterator[float]:
    """Yield the difference between `refined` and the optimum of height 2, on graphs of up to 8 vertices."""
    for i in track(range(count), description="optimum", console=Console(stderr=True)):
        graph = random_graph(rng, i % 4, 2, 8)
        yield structural_entropy(graph, build_refined(graph, 2)) - optimum(graph) if graph.volume else 0.0


def comparisons(count: int, rng: np.random.Generator) -> Iterator[tuple[float, float, float]]:
    """Yield the entropy of `refined` minus the best other, minus its own at a lower height, and after reordering."""
    for i in track(range(count), description="comparison", console=Console(stderr=True)):
        graph = random_graph(rng, i % 4, 3, 60)
        other = renamed(graph, rng.permutation(len(graph)))
        last = np.inf
        for height in (2, 3, 4):
            entropy = {name: structural_entropy(graph, build(graph, height)) for name, build in BUILDERS.items()}
            ours = entropy.pop("refined")
            again = structural_entropy(other, build_refined(other, height))
            yield ours - min(entropy.values()), ours - last, abs(ours - again)
            last = ours


def quality(count: int) -> dict[str, float]:
    """Count how often `refined` is optimal on small graphs, and how often another builder or height is better."""
    rng = np.random.default_rng(0)
    missed = [gap for gap in gaps(count, rng) if gap > TOLERANCE]
    margins, rises, changes = np.array(list(comparisons(count, rng))).T
    return {
        "small_graphs": count,
        "optimal": count - len(missed),
        "largest_gap": round(max(missed, default=0.0), 6),
        "compared": len(margins),
        "beaten": int((margins > TOLERANCE).sum()),
        "largest_loss": round(max(0.0, float(margins.max())), 6),
        "mean_margin": round(float(margins.mean()), 4),
        "rises_with_height": int((rises > TOLERANCE).sum()),
        "changed_by_renaming": int((changes > TOLERANCE).sum()),
    }
