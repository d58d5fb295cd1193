"""The Typer application, and the options and helpers that several commands share."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.errors import DataError, HillError, counted
from hill.io import COMMIT

app = typer.Typer(
    help="Classify text into a taxonomy.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)

DATA_HELP = (
    "JSONL, CSV, Excel or Parquet with text and labels; a folder with train, dev and test files; or a folder that "
    "save_to_disk of Hugging Face datasets wrote."
)
TAXONOMY_HELP = "Labels and their parents: a table, parent-child lines, paths, JSON or SKOS."

Data = Annotated[Path, typer.Argument(help=DATA_HELP)]
TaxonomyFile = Annotated[Path, typer.Option("--taxonomy", help=TAXONOMY_HELP)]
Language = Annotated[str, typer.Option(help="Language of the labels, if the taxonomy has several.")]
TextColumn = Annotated[str, typer.Option(help="Name of the column with the texts.")]
LabelsColumn = Annotated[
    list[str] | None,
    typer.Option(help="Name of the column with the labels (default: labels). Repeat it for the levels of a path."),
]
Separator = Annotated[str, typer.Option(help="Separator between labels in one cell. Default: '|', ';' or ','.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Model = Annotated[Path, typer.Argument(help="Folder of a trained or exported model.")]


def main() -> None:
    """Run the command line. Expected errors are one line on standard error and exit code 2."""
    if isinstance(sys.stdout, TextIOWrapper):  # escape characters that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (HillError, OSError) as error:
        if isinstance(error, OSError):  # a path that is too long, or a folder without read permission
            if error.filename is None:
                raise
            error = HillError(f"'{error.filename}' cannot be used: {error.strerror}; give another path")
        sys.stderr.write(f"hill: {error}\n")
        raise SystemExit(2) from None


@app.callback(invoke_without_command=True)
def _hill(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show_version:
        print(f"hill {version('hill-htc')}")
        raise typer.Exit


def load_model(folder: Path) -> Any:
    """Load a trained or an exported model; an exported one without importing torch."""
    with pause_gc():
        if is_exported(folder):
            from hill.export import OnnxClassifier

            return OnnxClassifier.load(folder)
        from hill.classifier import HillClassifier

        return HillClassifier.load(folder)


@contextmanager
def pause_gc() -> Iterator[None]:
    """Import packages without garbage collection; what exists afterwards is never scanned again, not even at exit.

    torch and transformers create a million objects and no garbage. Scanning them takes 1.1 of 3.8 s of `hill predict`.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def is_exported(folder: Path) -> bool:
    """Whether a folder has an exported model; its files may be in the folder of an interrupted save."""
    has_graph = folder.is_dir() and any((folder / part / "model.onnx").is_file() for part in (".", COMMIT))
    return has_graph and not (folder / "model.safetensors").exists()


@contextmanager
def counting(unit: str) -> Iterator[Callable[[int], None]]:
    """Show a counter on standard error; call the function that this yields to advance it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + unit), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda count: progress.advance(task, count)


def check_new_file(out: Path, suffix: str) -> None:
    """Raise unless this is the name of a file with this ending that does not exist yet."""
    if out.suffix != suffix:
        raise DataError(f"--out is '{out}'; expected a {suffix} file")
    if out.exists():
        raise DataError(f"--out is '{out}', which exists and may have somebody's work; choose another name, or move it")


SHOWN_METRICS = {
    "labels": {
        "micro_f1": ("micro F1", "over all labels of all documents; frequent labels count most"),
        "macro_f1": ("macro F1", "mean over labels; rare ones count as much as frequent ones"),
    },
    "hierarchy": {
        "hierarchical_f1": ("hierarchical F1", "with all ancestors; a near miss costs less than a far one"),
        "path_micro_f1": ("whole paths", "F1 of complete paths, from a root to a most specific label"),
    },
    "scores": {"ece": ("calibration error", "how far scores are from probabilities; 0 is best")},
}
"""The metrics that are printed by default, in groups, with a name and an explanation."""


def print_metrics(metrics: dict[str, Any], show_all: bool = False, hint: str = "") -> None:
    """Print the main metrics with explanations and where to find the others, or all: one per line, then the levels."""
    if not show_all:
        split = f" of {metrics['split']}" if "split" in metrics else ""
        print(f"{counted(metrics['documents'], 'document')}{split}; all values are from 0 to 1")
        for group, names in SHOWN_METRICS.items():
            for number, (key, (name, meaning)) in enumerate(names.items()):
                print(f"{'' if number else group:10} {name:18} {metrics[key]:.4f}  {meaning}")
        print(hint)
        return
    for name, value in metrics.items():
        if isinstance(value, float):
            print(f"{name:34} {value:.4f}")
        elif name != "levels":
            print(f"{name:34} {value}")
    for level in metrics.get("levels", []):
        values = "  ".join(f"{key} {level[key]:.4f}" for key in ("micro_f1", "macro_f1"))
        print(f"level {level['level']} ({level['labels']:,} labels)".ljust(34), values)
