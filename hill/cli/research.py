"""Commands that make and compare the runs of experiments."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import Json, app


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="main-table, ablation, heights, trees, questions or cost.")],
    data: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    out: Annotated[Path, typer.Option(help="Folder for runs, tables and figures; experiments may share it.")],
    taxonomy: Annotated[Path | None, typer.Option(help="Default: the file taxonomy.* of the data folder.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Text encoder of all rows that have one.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 7,8,9.")] = "5",
    rows: Annotated[Path | None, typer.Option(help="Folder with one TOML a row.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this row alone; may be repeated.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting of all rows.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; on a GPU, 4 small ones pay.")] = 1,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep trained models under OUT/models.")] = False,
    keep_scores: Annotated[
        bool, typer.Option("--keep-scores", help="Keep the scores of dev and test under OUT/scores.")
    ] = False,
) -> None:
    """Make a table of the paper on any data: runs what is missing, keeps what is done, writes table and report."""
    from hill.experiment.program import run_experiment
    from hill.experiment.run import Extra

    page = run_experiment(
        name,
        data,
        out,
        taxonomy=taxonomy,
        encoder=encoder,
        seeds=seeds,
        rows=rows,
        only=only or [],
        assignments=assignments or [],
        workers=workers,
        extra=Extra(out / "models" if keep_models else None, out / "scores" if keep_scores else None),
    )
    print(page.text)
    for file in page.files:
        print(file)
    raise typer.Exit(1 if page.failed else 0)


Run = Annotated[Path, typer.Argument(help="Folder of a run of `hill experiment`, or its file of predictions.")]


@app.command()
def compare(
    a: Run,
    b: Run,
    decoding: Annotated[str, typer.Option(help="raw: threshold 0.5 as in the paper; tuned: that of dev.")] = "tuned",
    resamples: Annotated[int, typer.Option(help="How often documents are drawn.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Fixes what is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Tell whether two runs differ on the same test documents: paired bootstrap and approximate randomisation."""
    from hill.experiment.compare import compare_runs

    found = compare_runs(a, b, decoding, resamples, seed)
    if as_json:
        print(json.dumps([difference.document() for difference in found]))
        return
    print(f"{'':16}{'A':>9}{'B':>9}{'B - A':>9}   95 % interval      p bootstrap  p randomisation")
    for of in found:
        values = f"{100 * of.a:9.2f}{100 * of.b:9.2f}{100 * of.difference:+9.2f}"
        interval = f"{100 * of.low:+7.2f} {100 * of.high:+7.2f}"
        print(f"{of.measure:16}{values}   {interval}    {of.p_bootstrap:11.4f}  {of.p_randomisation:15.4f}")
