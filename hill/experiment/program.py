"""The program behind `hill experiment`: it runs what is missing, keeps what is done, then writes table and report."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hill.experiment.facts import read_source
from hill.experiment.figures import need_figures
from hill.experiment.plan import NO_EXTRA, Plan, read_seeds, run_missing
from hill.experiment.report import markdown, write_page
from hill.experiment.rows import reference_row, rows_folder, share_trees, table_rows
from hill.experiment.run import Extra
from hill.experiment.table import Results


@dataclass(frozen=True)
class Page:
    """What an experiment leaves: the results as text, the files written, and the runs that failed."""

    text: str
    files: list[Path]
    failed: list[str]


def run_experiment(
    table: str,
    data: Path,
    out: Path,
    *,
    taxonomy: Path | None = None,
    encoder: str | None = None,
    seeds: str = "5",
    rows: Path | None = None,
    only: Iterable[str] = (),
    assignments: Iterable[str] = (),
    extra: Extra = NO_EXTRA,
    workers: int = 1,
) -> Page:
    """Run what a table lacks, then write it; all that can be wrong with the request is said before the first run."""
    need_figures()
    folder = rows_folder(data, rows)
    plan = Plan(table_rows(table, folder, encoder, assignments), read_seeds(seeds), out)
    plan.runs(only)
    source = read_source(data, taxonomy)
    plan = replace(plan, rows=share_trees(plan.rows, source.taxonomy))
    ended = list(run_missing(plan, source, only, extra, workers))
    failed = [run.folder.name for run, problem, _ in ended if problem]
    results = Results(table, source.name, plan.rows, plan.records(source), reference_row(table, plan.rows))
    files = write_page(results, out / table)
    return Page(markdown(table, [], results.sections()[:2]), files, failed)
