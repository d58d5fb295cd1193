"""Commands on answers of reviewers: export-labels and import-labels."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import TAXONOMY_HELP, Language, TaxonomyFile, app

ANSWERS_HELP = "Answers file that hill serve --review writes, such as answers.sqlite."


@app.command("export-labels")
def export_labels(
    source: Annotated[Path, typer.Argument(help=f"{ANSWERS_HELP} With --format also a queue of hill suggest.")],
    out: Annotated[Path, typer.Option(help="File to write: .jsonl or .csv for hill train; with --format .json.")],
    tool: Annotated[
        str | None, typer.Option("--format", help="label-studio or argilla: tasks for that annotation tool.")
    ] = None,
    taxonomy: Annotated[Path | None, typer.Option(help=f"With --format. {TAXONOMY_HELP}")] = None,
    language: Language = "en",
) -> None:
    """Write the current answers as training data, or answers or a queue as tasks for an annotation tool."""
    from hill.data.annotation import read_queue, write_labels, write_tasks
    from hill.data.answers import count_disagreements, read_answers
    from hill.data.readers import format_of
    from hill.errors import ConfigError
    from hill.taxonomy import read_taxonomy

    is_queue = format_of(source) != "answers"
    if tool is None:
        if is_queue:
            raise ConfigError(f"'{source}' has no answers; give an answers file, or a --format for an annotation tool")
        answers = read_answers(source)
        count = write_labels(answers, out)
        skipped = sum(answer.action == "skip" for answer in answers)
        print(f"{count:,} labelled documents in {out}" + (f"; {skipped:,} skipped" if skipped else ""))
        if differing := count_disagreements(source):
            sys.stderr.write(f"hill: documents on which reviewers disagree: {differing:,}; the last answer counts\n")
        return
    if taxonomy is None:
        raise ConfigError(f"--format {tool} needs --taxonomy, the taxonomy of the labels")
    labels = read_taxonomy(taxonomy, language)
    documents = read_queue(source, labels) if is_queue else [a for a in read_answers(source) if a.labels]
    config = write_tasks(documents, labels, out, tool)
    print(f"{len(documents):,} documents in {out}; configuration in {config}")


@app.command("import-labels")
def import_labels(
    export: Annotated[Path, typer.Argument(help="JSON export of Label Studio, or records of Argilla as JSON.")],
    taxonomy: TaxonomyFile,
    answers: Annotated[Path, typer.Option(help=f"{ANSWERS_HELP} Created if it does not exist.")],
    language: Language = "en",
) -> None:
    """Add the answers of an annotation tool to an answers file, which hill train reads."""
    from hill.data.annotation import read_annotations
    from hill.data.answers import Answers
    from hill.taxonomy import read_taxonomy

    found = read_annotations(export, read_taxonomy(taxonomy, language))
    with Answers(answers) as store:
        added = store.merge(found)
    print(f"{added:,} answers added to {answers}; {len(found) - added:,} were already there")
