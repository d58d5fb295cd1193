"""A plot of a coding tree beside its taxonomy; colours show the clusters of the tree."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hill.errors import ConfigError, need
from hill.io import atomic_file
from hill.taxonomy import Taxonomy
from hill.tree.build import BuiltTree
from hill.tree.coding_tree import CodingTree
from hill.types import FloatArray, IntArray

FORMATS = (".svg", ".png", ".pdf")
MAX_NAMED = 400
"""Labels up to which all names are written; a larger coding tree is drawn as nested blocks."""
MAX_NAMES = 80
MAX_ROWS = 10_000
"""Rows that can be distinguished, four per pixel; of several elements on the same rows, one is drawn."""
ROW_HEIGHT = 0.17
WIDTH, MAX_HEIGHT = 15.0, 22.0
GREY = (0.6, 0.63, 0.65)
INVALID_IN_SVG = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are not allowed in SVG."""


def draw_tree(taxonomy: Taxonomy, built: BuiltTree, path: Path) -> None:
    """Draw the taxonomy on the left and its coding tree on the right; save the plot as SVG, PNG or PDF."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw '{path}': unknown format '{path.suffix}'; expected {', '.join(FORMATS)}")
    if not len(taxonomy):
        raise ConfigError("cannot draw an empty taxonomy")
    figures = need("matplotlib.figure", "plot", "drawing a tree")
    figure_height = min(1.2 + ROW_HEIGHT * len(taxonomy), MAX_HEIGHT)
    figure = figures.Figure(figsize=(WIDTH, max(figure_height, 3.0)), layout="constrained")
    left, right = figure.subplots(1, 2)
    taxonomy_points = taxonomy_layout(taxonomy)
    tree_points, colours = tree_layout(built.tree, taxonomy_points.y), _colours(built)
    sizes = " – ".join(f"{size:,}" for size in built.tree.sizes)
    title = f"taxonomy: {len(taxonomy):,} labels, depth {len(taxonomy.levels)}"
    tree_title = f"coding tree ({built.method}): {sizes} nodes, {built.entropy:.4f} of {built.flat:.4f} bits"
    for axes, layout, text in ((left, taxonomy_points, title), (right, tree_points, tree_title)):
        axes.set_title(text, loc="left", fontsize=11)
        axes.set_ylim(layout.y.max() + 1, -1)
        axes.set_xlim(layout.x.min() - 0.2, layout.x.max() + 1.4)
        axes.axis("off")
    _draw_lines(left, taxonomy_points, colours)
    _write_names(left, taxonomy, taxonomy_points, colours, _points_to_name(taxonomy_points, len(taxonomy)))
    if len(taxonomy) <= MAX_NAMED:
        _draw_lines(right, tree_points, colours)
        _write_names(right, taxonomy, tree_points, colours, np.arange(len(taxonomy)))
    else:
        _draw_blocks(right, built, tree_points, colours)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "hill"}  # reproducible, with text as text
    matplotlib = need("matplotlib", "plot", "drawing a tree")
    with matplotlib.rc_context(settings), warnings.catch_warnings(), atomic_file(path) as draft:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # it is drawn as a box
        figure.savefig(draft, dpi=110, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


# Layout


@dataclass(frozen=True)
class Layout:
    """Points, their parents, and the range of rows of each point."""

    x: FloatArray
    y: FloatArray
    parents: IntArray
    """The parent of each point, -1 for none."""
    low: FloatArray
    high: FloatArray


def taxonomy_layout(taxonomy: Taxonomy) -> Layout:
    """Place one label per row under its first parent, children in order; the column is the depth."""
    first, n = taxonomy.first_parents, len(taxonomy)
    sizes, x, y = np.ones(n), np.zeros(n), np.zeros(n)
    for rows in taxonomy.levels[:0:-1]:
        np.add.at(sizes, first[rows], sizes[rows])
    # The summed sizes of the earlier siblings of each label.
    order = np.argsort(first, kind="stable")
    ends = np.cumsum(sizes[order])
    is_first = np.diff(first[order], prepend=-2) != 0
    starts = (ends - sizes[order])[is_first]
    before = np.empty(n)
    before[order] = ends - sizes[order] - starts[np.cumsum(is_first) - 1]
    y[taxonomy.roots] = before[taxonomy.roots]
    for rows in taxonomy.levels[1:]:
        x[rows], y[rows] = x[first[rows]] + 1, y[first[rows]] + 1 + before[rows]
    return Layout(x, y, first, y, y)


def tree_layout(tree: CodingTree, rank: FloatArray) -> Layout:
    """Place one leaf per row, grouped by the tree and then by rank; a node is centred on its leaves.

    Points are numbered by level from the leaves; the root is in the first column.
    """
    n = tree.sizes[0]
    earliest = [np.full(size, np.inf) for size in tree.sizes]
    for level, members in enumerate(tree.levels):
        np.minimum.at(earliest[level], members, rank)
    keys = [earliest[level][members] for level, members in enumerate(tree.levels)]
    rows = np.empty(n)
    rows[np.lexsort(keys)] = np.arange(n)
    starts = np.concatenate([[0], np.cumsum(tree.sizes)])
    x, above = np.zeros(starts[-1]), np.full(starts[-1], -1, dtype=np.int64)
    low, high = np.full(starts[-1], np.inf), np.full(starts[-1], -np.inf)
    for level, members in enumerate(tree.levels):
        points = slice(starts[level], starts[level + 1])
        np.minimum.at(low, starts[level] + members, rows)
        np.maximum.at(high, starts[level] + members, rows)
        x[points] = tree.height - level
        if level < tree.height:
            above[points] = starts[level + 1] + tree.parents[level]
    return Layout(x, (low + high) / 2, above, low, high)


# Drawing


def _colours(built: BuiltTree) -> FloatArray:
    """Return a colour per label, by its cluster on the highest level with several; single labels are grey."""
    tree = built.tree
    level = max((k for k in range(1, tree.height) if tree.sizes[k] > 1), default=0)
    palette = np.array(need("matplotlib", "plot", "drawing a tree").colormaps["tab20"].colors)
    counts = np.bincount(tree.levels[level])
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    colours = np.where((counts < 2)[:, None], GREY, palette[rank % len(palette)])
    chosen: FloatArray = colours[tree.levels[level]]
    return chosen


def _draw_lines(axes: Any, layout: Layout, colours: FloatArray) -> None:
    collections = need("matplotlib.collections", "plot", "drawing a tree")
    n, dense = len(colours), len(colours) > MAX_NAMED
    # One line of three points per point with a parent: (lines, 3, 2)
    x, y, below = layout.x, layout.y, np.flatnonzero(layout.parents >= 0)
    top = layout.parents[below]
    corners = [(x[top], y[top]), (x[top], y[below]), (x[below], y[below])]
    elbows = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    visible = _visible(n, *elbows[:, 0].T, *elbows[:, 2].T)
    elbows, below = elbows[visible], below[visible]
    tints = colours[below] if dense else GREY
    width = 0.3 if dense else 0.8
    lines = collections.LineCollection(list(elbows), colors=tints, linewidths=width, rasterized=dense)
    axes.add_collection(lines)
    dots, size = _visible(n, x[:n], y[:n]), 1 if dense else 12
    axes.scatter(x[dots], y[dots], c=colours[dots], s=size, linewidths=0, zorder=2, rasterized=dense)


def _visible(n: int, *places: FloatArray) -> IntArray:
    """Return the last element at each visible position; coordinates alternate between x and y, for n rows."""
    grid = [np.floor(each * min(1, MAX_ROWS / n)) if number % 2 else each for number, each in enumerate(places)]
    order = np.lexsort(grid)
    same = np.all([np.diff(each[order]) == 0 for each in grid], axis=0)
    return np.sort(order[np.append(~same, True)]) if len(order) else order


def _draw_blocks(axes: Any, built: BuiltTree, layout: Layout, colours: FloatArray) -> None:
    """Draw each node as a block as tall as its labels, the root on the left; neighbours differ in tint."""
    collections = need("matplotlib.collections", "plot", "drawing a tree")
    start = built.tree.sizes[0]
    low, high, x = layout.low[start:] - 0.5, layout.high[start:] + 0.5, layout.x[start:]
    if (step := start / MAX_ROWS) > 1:  # one block for all nodes on the same rows
        low, high = np.floor(low / step) * step, np.ceil(high / step) * step
    corners = [(x, low), (x + 0.97, low), (x + 0.97, high), (x, high)]
    order = np.lexsort((low, x))
    tints = np.empty((len(x), 3))
    first = np.argsort(layout.y[:start], kind="stable")[np.minimum(layout.low[start:].astype(np.int64), start - 1)]
    shade = np.where(np.arange(len(x)) % 2, 0.25, 0.45)[:, None]
    tints[order] = colours[first[order]] * (1 - shade) + shade
    tints[x == 0] = 0.88
    visible = _visible(start, x, low, x, high)
    blocks = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)[visible]
    axes.add_collection(
        collections.PolyCollection(list(blocks), facecolors=tints[visible], linewidths=0, rasterized=True)
    )


def _points_to_name(layout: Layout, n: int) -> IntArray:
    """Return the points to name: all if there is space, else those with the most descendants that do not overlap."""
    if n <= MAX_NAMED:
        return np.arange(n)
    below = np.ones(n)
    order = np.argsort(-layout.x, kind="stable")
    for points in np.split(order, np.flatnonzero(np.diff(layout.x[order])) + 1)[:-1]:
        np.add.at(below, layout.parents[points], below[points])
    chosen: list[int] = []
    for point in np.argsort(-below, kind="stable")[: 3 * MAX_NAMES].tolist():
        if all(abs(layout.y[point] - layout.y[other]) > n / MAX_NAMES for other in chosen):
            chosen.append(point)
    return np.array(chosen, dtype=np.int64)


def _write_names(axes: Any, taxonomy: Taxonomy, layout: Layout, colours: FloatArray, points: IntArray) -> None:
    background = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6} if len(colours) > MAX_NAMED else None
    for point in points.tolist():
        name = INVALID_IN_SVG.sub("\ufffd", taxonomy[point].name)
        axes.text(
            layout.x[point] + 0.06,
            layout.y[point],
            name if len(name) <= 36 else name[:35] + "…",
            fontsize=7.5,
            va="center",
            color=0.6 * colours[point],
            clip_on=True,
            parse_math=False,
            bbox=background,
        )
