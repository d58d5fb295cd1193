"""`python -m tests.fuzz`: give invalid input to every reader, and print a table of the results."""

import argparse
import json
import os
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tests.fuzz.readers import readers
from tests.fuzz.run import Row, run, shares


def main() -> int:
    """Run and print the results; 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="total number of inputs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--reader", action="append", help="only this reader; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for inputs with findings")
    parser.add_argument("--engine", choices=["plain", "atheris"], default="plain", help="atheris: guided by coverage")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    names = arguments.reader or list(readers())
    if unknown := set(names) - set(readers()):
        parser.error(f"unknown reader '{min(unknown)}'; expected {', '.join(readers())}")
    if arguments.engine == "atheris":
        from tests.fuzz.guided import guide

        return guide(names, arguments.inputs, arguments.seed, arguments.out)
    columns = (TextColumn("inputs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(shares(arguments.inputs, names).values()))
        rows = run(
            arguments.inputs,
            arguments.seed,
            names,
            arguments.jobs,
            arguments.out,
            lambda done: progress.advance(task, done),
        )
    if arguments.json:
        sys.stdout.write(json.dumps([vars(row) | {"inputs": row.inputs} for row in rows]) + "\n")
    else:
        show(rows, arguments.out)
    return int(any(row.found for row in rows))


def show(rows: list[Row], out: Path) -> None:
    """Print the table and the findings."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("reader", "inputs", "accepted", "refused", "found", "longest", "memory"):
        table.add_column(column, justify="left" if column == "reader" else "right")
    for row in rows:
        numbers = (row.inputs, row.accepted, row.refused, sum(row.found.values()))
        measured = f"{row.seconds:.2f} s", f"+{row.megabytes:.0f} MiB"
        table.add_row(row.reader, *(f"{number:,}" for number in numbers), *measured)
    totals = zip(*((r.inputs, r.accepted, r.refused, sum(r.found.values())) for r in rows), strict=True)
    measured = f"{max(row.seconds for row in rows):.2f} s", f"+{max(row.megabytes for row in rows):.0f} MiB"
    table.add_row("all", *(f"{sum(column):,}" for column in totals), *measured)
    console = Console()
    console.print(table)
    for row in rows:
        for reason, count in sorted(row.found.items(), key=lambda pair: -pair[1]):
            console.print(Text(f"{row.reader}: {count:,} times: {reason}"), soft_wrap=True)
    if any(row.found for row in rows):
        console.print(f"inputs in {out}")


if __name__ == "__main__":
    sys.exit(main())
