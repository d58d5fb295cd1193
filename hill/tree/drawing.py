"""A picture of a coding tree beside its taxonomy; colours show which labels the tree puts together."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hill.errors import ConfigError
from hill.extras import need
from hill.taxonomy import Taxonomy
from hill.tree.build import BuiltTree
from hill.tree.layout import Layout, taxonomy_layout, tree_layout
from hill.types import FloatArray, IntArray

FORMATS = (".svg", ".png", ".pdf")
NAMED = 400
"""Most labels whose names are all written; a larger coding tree is drawn as nested blocks."""
MOST_NAMES = 80
FINEST = 10_000
"""Rows of a picture that can be told apart, four to a pixel; of what falls on the same ones, one is drawn."""
ROW = 0.17
WIDTH, TALLEST = 15.0, 22.0
GREY = (0.6, 0.63, 0.65)
UNDRAWN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no SVG may hold."""


def draw_tree(taxonomy: Taxonomy, built: BuiltTree, path: Path) -> None:
    """Draw the taxonomy on the left and its coding tree on the right, and save the picture as SVG, PNG or PDF."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw '{path}': unknown format '{path.suffix}'; expected {', '.join(FORMATS)}")
    if not len(taxonomy):
        raise ConfigError("cannot draw an empty taxonomy")
    figures = need("matplotlib.figure", "plot", "drawing a tree")
    tall = min(1.2 + ROW * len(taxonomy), TALLEST)
    figure = figures.Figure(figsize=(WIDTH, max(tall, 3.0)), layout="constrained")
    left, right = figure.subplots(1, 2)
    given = taxonomy_layout(taxonomy)
    coding, colours = tree_layout(built.tree, given.y), _colours(built)
    sizes = " – ".join(f"{size:,}" for size in built.tree.sizes)
    _frame(left, given, f"taxonomy: {len(taxonomy):,} labels, depth {len(taxonomy.levels)}")
    _frame(right, coding, f"coding tree ({built.method}): {sizes} nodes, {built.entropy:.4f} of {built.flat:.4f} bits")
    _draw_lines(left, given, colours)
    _write_names(left, taxonomy, given, colours, _largest(given, len(taxonomy)))
    if len(taxonomy) <= NAMED:
        _draw_lines(right, coding, colours)
        _write_names(right, taxonomy, coding, colours, np.arange(len(taxonomy)))
    else:
        _draw_blocks(right, built, coding, colours)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "hill"}  # the same picture each time, its text as text
    try:
        with need("matplotlib", "plot", "drawing a tree").rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for it
            figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from None


def _colours(built: BuiltTree) -> FloatArray:
    """A colour for each label: that of its module on the highest level that has several; lone labels are grey."""
    tree = built.tree
    level = max((k for k in range(1, tree.height) if tree.sizes[k] > 1), default=0)
    palette = np.array(need("matplotlib", "plot", "drawing a tree").colormaps["tab20"].colors)
    counts = np.bincount(tree.levels[level])
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    colours = np.where((counts < 2)[:, None], GREY, palette[rank % len(palette)])
    chosen: FloatArray = colours[tree.levels[level]]
    return chosen


def _frame(axes: Any, layout: Layout, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylim(layout.y.max() + 1, -1)
    axes.set_xlim(layout.x.min() - 0.2, layout.x.max() + 1.4)
    axes.axis("off")


def _draw_lines(axes: Any, layout: Layout, colours: FloatArray) -> None:
    collections = need("matplotlib.collections", "plot", "drawing a tree")
    n, dense = len(colours), len(colours) > NAMED
    elbows, below = layout.elbows, np.flatnonzero(layout.above >= 0)
    seen = _seen(n, *elbows[:, 0].T, *elbows[:, 2].T)
    elbows, below = elbows[seen], below[seen]
    tints = colours[below] if dense else GREY
    width = 0.3 if dense else 0.8
    lines = collections.LineCollection(list(elbows), colors=tints, linewidths=width, rasterized=dense)
    axes.add_collection(lines)
    dots, size = _seen(n, layout.x[:n], layout.y[:n]), 1 if dense else 12
    axes.scatter(layout.x[dots], layout.y[dots], c=colours[dots], s=size, linewidths=0, zorder=2, rasterized=dense)


def _seen(n: int, *places: FloatArray) -> IntArray:
    """The last of those that fall on the same places of a picture of n rows, columns and rows in turn."""
    grid = [np.floor(each * min(1, FINEST / n)) if number % 2 else each for number, each in enumerate(places)]
    order = np.lexsort(grid)
    same = np.all([np.diff(each[order]) == 0 for each in grid], axis=0)
    return np.sort(order[np.append(~same, True)]) if len(order) else order


def _draw_blocks(axes: Any, built: BuiltTree, layout: Layout, colours: FloatArray) -> None:
    """Each node of the tree as a block as tall as its labels, root on the left; neighbours differ in tint."""
    collections = need("matplotlib.collections", "plot", "drawing a tree")
    start = built.tree.sizes[0]
    low, high, x = layout.low[start:] - 0.5, layout.high[start:] + 0.5, layout.x[start:]
    if (step := start / FINEST) > 1:  # a block stands for all that fall on its rows
        low, high = np.floor(low / step) * step, np.ceil(high / step) * step
    corners = [(x, low), (x + 0.97, low), (x + 0.97, high), (x, high)]
    order = np.lexsort((low, x))
    tints = np.empty((len(x), 3))
    first = np.argsort(layout.y[:start], kind="stable")[np.minimum(layout.low[start:].astype(np.int64), start - 1)]
    shade = np.where(np.arange(len(x)) % 2, 0.25, 0.45)[:, None]
    tints[order] = colours[first[order]] * (1 - shade) + shade
    tints[x == 0] = 0.88
    seen = _seen(start, x, low, x, high)
    blocks = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)[seen]
    axes.add_collection(collections.PolyCollection(list(blocks), facecolors=tints[seen], linewidths=0, rasterized=True))


def _largest(layout: Layout, n: int) -> IntArray:
    """Points to name: all where there is room, else those with most below them that leave each other room."""
    if n <= NAMED:
        return np.arange(n)
    below = np.ones(n)
    order = np.argsort(-layout.x, kind="stable")
    for points in np.split(order, np.flatnonzero(np.diff(layout.x[order])) + 1)[:-1]:
        np.add.at(below, layout.above[points], below[points])
    taken: list[int] = []
    for point in np.argsort(-below, kind="stable")[: 3 * MOST_NAMES].tolist():
        if all(abs(layout.y[point] - layout.y[other]) > n / MOST_NAMES for other in taken):
            taken.append(point)
    return np.array(taken, dtype=np.int64)


def _write_names(axes: Any, taxonomy: Taxonomy, layout: Layout, colours: FloatArray, points: IntArray) -> None:
    paper = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6} if len(colours) > NAMED else None
    for point in points.tolist():
        name = UNDRAWN.sub("\ufffd", taxonomy[point].name)
        axes.text(
            layout.x[point] + 0.06,
            layout.y[point],
            name if len(name) <= 36 else name[:35] + "…",
            fontsize=7.5,
            va="center",
            color=0.6 * colours[point],
            clip_on=True,
            parse_math=False,
            bbox=paper,
        )
