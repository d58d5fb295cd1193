"""Building by method name, printed tables, plots, and `hill tree`."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from rich.console import Console

from hill.cli.data import print_comparison, print_tree
from hill.errors import ConfigError, DataError
from hill.taxonomy import Label, Taxonomy, write_taxonomy
from hill.tree import METHODS, CodingTree, build_tree
from hill.tree.plot import draw_tree, taxonomy_layout, tree_layout
from tests.command import hill
from tests.conftest import random_taxonomy


@pytest.fixture
def path_of_four() -> Taxonomy:
    """The path 0-1-2-3, whose flat entropy is 1.918296 and whose best tree of height 2 has 1.251629 bits."""
    return Taxonomy([Label(str(i), f"label {i}", (str(i - 1),) if i else ()) for i in range(4)])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds_the_tree_of_a_taxonomy(method: str, path_of_four: Taxonomy) -> None:
    built = build_tree(path_of_four, 2, method)
    assert built.entropy == pytest.approx(1.251629, abs=1e-6) and built.flat == pytest.approx(1.918296, abs=1e-6)
    assert built.tree.nested() == [[0, 1], [2, 3]]
    document = built.to_dict()
    assert (document["method"], document["height"], document["sizes"]) == (method, 2, [4, 2, 1])
    assert document["entropy"] == built.entropy == pytest.approx(sum(document["entropy_by_level"]))
    assert document["seconds"] > 0


def test_unknown_methods_and_heights(path_of_four: Taxonomy) -> None:
    with pytest.raises(ConfigError, match="unknown method 'best'; expected paper, authors, refined"):
        build_tree(path_of_four, 2, "best")
    with pytest.raises(ConfigError, match="0"):
        build_tree(path_of_four, 0)


def test_reports(path_of_four: Taxonomy) -> None:
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    trees = [build_tree(path_of_four, 2, method) for method in METHODS]
    print_tree(path_of_four, trees[0], console)
    print_comparison(path_of_four, trees, console)
    console.file.close()
    text = console.export_text()
    for part in ("entropy 1.2516 bits, 34.8% below the flat tree (1.9183)", "authors", "refined", "4 2 1"):
        assert part in text


def test_a_tree_without_edges_saves_nothing() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    taxonomy = Taxonomy([Label("a", "A"), Label("b", "B")])
    print_tree(taxonomy, build_tree(taxonomy, 2), console)
    console.file.close()
    assert "0 % below the flat tree" in console.export_text()


def test_the_taxonomy_layout_has_one_row_per_label_under_its_first_parent(animals: Taxonomy) -> None:
    layout = taxonomy_layout(animals)
    assert sorted(layout.y.tolist()) == list(range(7))
    assert layout.parents.tolist() == [-1, 0, 0, 1, 1, 2, -1] and layout.x.tolist() == [0, 1, 1, 2, 2, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_layout_centres_each_node_on_its_leaves(seed: int) -> None:
    taxonomy = random_taxonomy(seed, n=40)
    tree = build_tree(taxonomy, 3).tree
    layout = tree_layout(tree, taxonomy_layout(taxonomy).y)
    assert sorted(layout.y[:40].tolist()) == list(range(40))
    start = 0
    for level, size in enumerate(tree.sizes):
        for node in range(size):
            rows = np.sort(layout.y[:40][tree.subset(level, node)])
            assert (np.diff(rows) == 1).all(), "the leaves of a node stand together"
            assert layout.y[start + node] == rows.mean() and layout.x[start + node] == tree.height - level
        start += size


@pytest.mark.parametrize(("n", "suffix"), [(30, "svg"), (30, "png"), (900, "png"), (1, "pdf")])
def test_plots_are_saved(tmp_path: Path, n: int, suffix: str) -> None:
    taxonomy = random_taxonomy(1, n=n, roots=1)
    draw_tree(taxonomy, build_tree(taxonomy, 2), tmp_path / f"tree.{suffix}")
    content = (tmp_path / f"tree.{suffix}").read_bytes()
    assert content.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])
    if suffix == "svg":
        assert b"coding tree (refined)" in content and b"name 7" in content


def test_invalid_plots_raise(tmp_path: Path, animals: Taxonomy) -> None:
    built = build_tree(animals, 2)
    with pytest.raises(ConfigError, match=r"unknown format '.gif'; expected .svg, .png, .pdf"):
        draw_tree(animals, built, tmp_path / "tree.gif")
    with pytest.raises(DataError, match="cannot write"):
        draw_tree(animals, built, tmp_path / "none" / "tree.svg")
    with pytest.raises(ConfigError, match="empty taxonomy"):
        draw_tree(Taxonomy([]), built, tmp_path / "tree.svg")


def test_hill_tree(tmp_path: Path, path_of_four: Taxonomy) -> None:
    file = tmp_path / "taxonomy.json"
    write_taxonomy(path_of_four, file)

    def hill_tree(*options: str) -> CompletedProcess[str]:
        return hill("tree", file, *options)

    shown = hill_tree("--height", "2", "--plot", str(tmp_path / "tree.svg"))
    assert shown.returncode == 0 and "coding tree by refined" in shown.stdout and (tmp_path / "tree.svg").exists()
    document = json.loads(hill_tree("--height", "2", "--method", "paper", "--json").stdout)
    assert document["method"] == "paper" and document["sizes"] == [4, 2, 1]
    compared = json.loads(hill_tree("--compare", "--json").stdout)
    assert [tree["method"] for tree in compared["trees"]] == list(METHODS)
    assert "refined" in hill_tree("--compare").stdout
    wrong = hill_tree("--height", "0")
    assert wrong.returncode == 2 and wrong.stderr.startswith("hill: ") and "0" in wrong.stderr


def test_a_tree_is_restored_from_json(animals: Taxonomy) -> None:
    tree = build_tree(animals, 2).tree
    assert CodingTree.from_json(tree.to_json()) == tree
