"""Control trees: their level sizes and clusters."""

from typing import Any

import numpy as np
import pytest

from hill.errors import ConfigError
from hill.taxonomy import Label, Taxonomy
from hill.tree import CONTROLS, METHODS, CodingTree, build_tree
from tests.conftest import random_taxonomy

TAXONOMIES = [random_taxonomy(1), random_taxonomy(2, n=60, roots=5, most_parents=3), random_taxonomy(3, n=5, roots=5)]


def groups(tree: CodingTree, level: int) -> set[frozenset[int]]:
    return {frozenset(tree.subset(level, node).tolist()) for node in range(tree.sizes[level])}


def chain(taxonomy: Taxonomy, row: int) -> list[int]:
    """A label and what is above it by first parents, from the root down."""
    found = [row]
    while taxonomy[found[0]].parents:
        found.insert(0, taxonomy.row(taxonomy[found[0]].parents[0]))
    return found


def slow_groups(taxonomy: Taxonomy, depth: int) -> set[frozenset[int]]:
    """Labels with the same ancestor at a depth; those that are less deep stay alone."""
    found: dict[Any, set[int]] = {}
    for row in range(len(taxonomy)):
        path = chain(taxonomy, row)
        found.setdefault(path[depth - 1] if len(path) >= depth else (row, "alone"), set()).add(row)
    return set(map(frozenset, found.values()))


def test_controls_are_not_methods() -> None:
    assert list(METHODS) == ["paper", "authors", "refined"] and list(CONTROLS) == ["random", "taxonomy"]


@pytest.mark.parametrize("method", CONTROLS)
@pytest.mark.parametrize("height", [1, 2, 3, 5])
@pytest.mark.parametrize("taxonomy", TAXONOMIES, ids=["forest", "dag", "roots"])
def test_levels_are_nested_partitions_of_the_labels(method: str, height: int, taxonomy: Taxonomy) -> None:
    built = build_tree(taxonomy, height, method)
    tree = built.tree
    assert built.method == method and tree.height == height and tree == tree.canonical()
    for level in range(height + 1):
        sets = groups(tree, level)
        assert sorted(row for each in sets for row in each) == list(range(len(taxonomy)))
        if level:
            assert all(any(small <= large for large in sets) for small in groups(tree, level - 1))
    assert built.entropy <= built.flat + 1e-9
    assert build_tree(taxonomy, height, method).tree == tree


@pytest.mark.parametrize("height", [1, 2, 3, 4])
@pytest.mark.parametrize("taxonomy", TAXONOMIES, ids=["forest", "dag", "roots"])
def test_a_random_tree_has_the_level_sizes_of_the_refined_one(height: int, taxonomy: Taxonomy) -> None:
    found, refined = (build_tree(taxonomy, height, method) for method in ("random", "refined"))
    assert found.tree.sizes == refined.tree.sizes


def test_a_random_tree_is_independent_of_the_labels() -> None:
    """Relations above do not matter where the sizes are the same, and neighbours are together no more than others."""
    taxonomy = random_taxonomy(4, n=400, roots=1)
    found, refined = (build_tree(taxonomy, 2, method).tree.levels[1] for method in ("random", "refined"))
    child, parent = taxonomy.edge_array.T
    together = float((found[child] == found[parent]).mean())
    by_chance = float((found[:, None] == found).mean())
    assert together < 3 * by_chance < float((refined[child] == refined[parent]).mean())
    nodes = int(found.max()) + 1
    assert len(set(found[:nodes].tolist())) < nodes  # the first labels are not one in each node
    turned = Taxonomy([Label(f"x{label.id}", label.name, tuple(f"x{p}" for p in label.parents)) for label in taxonomy])
    assert np.array_equal(build_tree(turned, 2, "random").tree.levels[1], found)


@pytest.mark.parametrize("height", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("taxonomy", TAXONOMIES, ids=["forest", "dag", "roots"])
def test_the_taxonomy_as_a_tree(height: int, taxonomy: Taxonomy) -> None:
    tree = build_tree(taxonomy, height, "taxonomy").tree
    for level in range(1, height):
        assert groups(tree, level) == slow_groups(taxonomy, height - level)


def test_the_animals_as_a_tree(animals: Taxonomy) -> None:
    """Bats count as mammals, their first parent; a label that has children is a leaf beside them."""
    assert build_tree(animals, 1, "taxonomy").tree.nested() == [0, 1, 2, 3, 4, 5, 6]
    assert build_tree(animals, 2, "taxonomy").tree.nested() == [[0, 1, 2, 3, 4, 5], [6]]
    assert build_tree(animals, 3, "taxonomy").tree.nested() == [[[0], [1, 3, 4], [2, 5]], [[6]]]
    assert build_tree(animals, 4, "taxonomy").tree.nested() == [[[[0]], [[1], [3], [4]], [[2], [5]]], [[[6]]]]


@pytest.mark.parametrize("method", CONTROLS)
def test_small_taxonomies_and_invalid_heights(method: str) -> None:
    one = Taxonomy([Label("a", "A")])
    assert build_tree(one, 3, method).tree.sizes == (1, 1, 1, 1)
    assert build_tree(Taxonomy([]), 2, method).tree.sizes == (0, 0, 1)
    with pytest.raises(ConfigError, match="height is 0; expected a whole number from 1"):
        build_tree(one, 0, method)
