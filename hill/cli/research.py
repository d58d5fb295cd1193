"""Commands that reproduce the paper: tables, paired tests between runs, and the research data sets."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import Json, app, counting

research = typer.Typer(
    help="Reproduce the paper: its tables, tests between runs, its data sets. A table keeps the runs that exist.",
    no_args_is_help=True,
)
app.add_typer(research, name="research")

TABLES = {
    "main-table": "Compare HILL with every rival of the paper.",
    "ablation": "Compare HILL with its ablations: other structure encoders, no contrast, no Algorithm 1.",
    "heights": "Train HILL with coding trees of height 1 to 6.",
    "trees": "Train HILL with the trees of each builder, a random tree and the taxonomy itself.",
    "questions": "Answer a question that the paper leaves open: HILL on TextRCNN.",
    "cost": "Measure time, memory and weights of HILL and HGCLR by the protocol of the released code.",
}


def _add_table(table: str, text: str) -> None:
    @research.command(table, help=text)
    def run_table(
        data: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
        out: Annotated[Path, typer.Option(help="Folder for runs, tables and figures; tables may share it.")],
        taxonomy: Annotated[Path | None, typer.Option(help="Default: the file taxonomy.* of the data folder.")] = None,
        encoder: Annotated[str | None, typer.Option(help="Text encoder of all rows that have one.")] = None,
        seeds: Annotated[str, typer.Option(help="The number of seeds, or a list: 7,8,9.")] = "5",
        rows: Annotated[Path | None, typer.Option(help="Folder with the settings of each row, one TOML file.")] = None,
        only: Annotated[list[str] | None, typer.Option(help="Run only this row; may be repeated.")] = None,
        assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting for all rows.")] = None,
        workers: Annotated[int, typer.Option(min=1, help="Parallel runs; on a GPU, 4 small ones pay.")] = 1,
        keep_models: Annotated[bool, typer.Option("--keep-models", help="Save the models in OUT/models.")] = False,
        keep_scores: Annotated[
            bool, typer.Option("--keep-scores", help="Save the scores of dev and test in OUT/scores.")
        ] = False,
    ) -> None:
        from hill.research.runs import Extra
        from hill.research.tables import run_experiment

        page = run_experiment(
            table,
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


for _table, _text in TABLES.items():
    _add_table(_table, _text)

Run = Annotated[Path, typer.Argument(help="Folder of a run, such as OUT/runs/hill-1, or its file of predictions.")]


@research.command()
def compare(
    a: Run,
    b: Run,
    decoding: Annotated[str, typer.Option(help="raw: threshold 0.5 as in the paper; tuned: that of dev.")] = "tuned",
    resamples: Annotated[int, typer.Option(help="Number of resamples.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: Json = False,
) -> None:
    """Test if two runs differ on the same test documents: paired bootstrap and approximate randomisation."""
    from hill.research.compare import compare_runs

    differences = compare_runs(a, b, decoding, resamples, seed)
    if as_json:
        print(json.dumps([difference.to_dict() for difference in differences]))
        return
    print(f"{'':16}{'A':>9}{'B':>9}{'B - A':>9}   95 % interval      p bootstrap  p randomisation")
    for row in differences:
        values = f"{100 * row.a:9.2f}{100 * row.b:9.2f}{100 * row.difference:+9.2f}"
        interval = f"{100 * row.low:+7.2f} {100 * row.high:+7.2f}"
        print(f"{row.measure:16}{values}   {interval}    {row.p_bootstrap:11.4f}  {row.p_randomisation:15.4f}")


@research.command()
def prepare(
    name: Annotated[str, typer.Argument(help="wos, rcv1 or nyt.")],
    source: Annotated[Path, typer.Option(help="Folder of the original distribution.")],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
) -> None:
    """Convert an original distribution to train, dev and test files with the standard splits."""
    from hill.research.datasets import prepare as prepare_data

    with counting("documents") as tick:
        prepared = prepare_data(name, source, out, tick)
    for split, count in prepared.documents.items():
        print(f"{split}: {count:,} documents")
    print(f"{prepared.labels} labels in {out / 'taxonomy.json'}")
    for note in prepared.notes:
        print(f"note: {note}")


def _add_moved(command: typer.Typer, name: str, old: str, new: str) -> None:
    """Add a hidden command with an old name; its error names the new command."""
    context = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @command.command(name, hidden=True, context_settings=context)
    def moved() -> None:
        from hill.errors import ConfigError

        raise ConfigError(f"`hill {old}` is now `hill research {new}`; see: hill research --help")


data = typer.Typer(hidden=True)
app.add_typer(data, name="data")
data.callback()(lambda: None)
_add_moved(data, "prepare", "data prepare", "prepare")
_add_moved(app, "experiment", "experiment TABLE", "TABLE")
_add_moved(app, "compare", "compare", "compare")
