"""The report of `hill tree`, for people."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hill.taxonomy import Taxonomy
from hill.tree.build import BuiltTree


def print_tree(taxonomy: Taxonomy, built: BuiltTree, console: Console) -> None:
    """Print the levels of one tree, leaves first, and what it saves against the flat tree."""
    console.print(f"[bold]{taxonomy!r}[/bold]", highlight=False)
    table = Table(title=f"coding tree by {built.method}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("height", "nodes", "children each", "bits"):
        table.add_column(column, justify="right")
    sizes = built.tree.sizes
    for height, size in enumerate(sizes):
        below = f"{sizes[height - 1] / size:.1f}" if height else ""
        bits = f"{built.levels[height]:.4f}" if height < len(built.levels) else ""
        table.add_row(str(height), f"{size:,}", below, bits)
    console.print(table)
    saved = f"{_saved(built)} below the flat tree ({built.flat:.4f})"
    console.print(f"entropy {built.entropy:.4f} bits, {saved}", highlight=False)
    console.print(f"built in {_seconds(built)}", highlight=False)


def print_comparison(taxonomy: Taxonomy, trees: Sequence[BuiltTree], console: Console) -> None:
    """Print several trees of one taxonomy side by side, one a row."""
    console.print(f"[bold]{taxonomy!r}[/bold]", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for column in ("entropy", "saved", "time"):
        table.add_column(column, justify="right")
    table.add_column("nodes, leaves to root")
    for built in trees:
        sizes = " ".join(f"{size:,}" for size in built.tree.sizes)
        table.add_row(built.method, f"{built.entropy:.4f}", _saved(built), _seconds(built), sizes)
    console.print(table)


def _saved(built: BuiltTree) -> str:
    return f"{1 - built.entropy / built.flat:.1%}" if built.flat else "0 %"


def _seconds(built: BuiltTree) -> str:
    return f"{built.seconds * 1000:.1f} ms" if built.seconds < 1 else f"{built.seconds:.2f} s"
