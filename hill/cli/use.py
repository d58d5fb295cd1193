"""Commands that use a trained model: evaluate, predict, explain, serve, export and card."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import (
    Data,
    Json,
    LabelsColumn,
    Model,
    Separator,
    TextColumn,
    app,
    check_new_file,
    counting,
    is_exported,
    load_model,
    pause_gc,
    print_metrics,
)
from hill.errors import counted, printable

# Evaluate


@app.command()
def evaluate(
    model: Model,
    data: Data,
    report: Annotated[Path | None, typer.Option(help="Write an error report: .html, or its numbers as .json.")] = None,
    explained: Annotated[int, typer.Option(help="Report: how many errors of each kind to explain.")] = 4,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also score documents from the training data.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Print all metrics, not only the main ones.")] = False,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
    as_json: Json = False,
) -> None:
    """Evaluate a model on data, without documents from its training data. A folder is evaluated on its test split.

    With --report, --json prints the report.
    """
    if report:
        from hill.report import make_report
        from hill.report.report import check_target

        check_target(report)  # before the evaluation, which takes long
    from hill.data import read_data

    classifier = load_model(model)
    splits = read_data(data, classifier.taxonomy, text_column, labels_column or "labels", separator)
    documents, warning = classifier.evaluation_documents(splits, include_seen)
    if report:
        with counting("documents") as tick:
            written = make_report(classifier, documents, _load_explain(model), explained, tick, warning)
        written.write(report)
        result = written.to_dict() if as_json else written.to_dict()["metrics"]
    else:
        result = classifier.evaluate(documents, include_seen=True)
        if as_json and warning:
            result["warning"] = warning
    if warning:
        sys.stderr.write(f"hill: {warning}\n")
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print_metrics(result, show_all, "--all prints all metrics, --report writes a page with the errors")
    if report:
        print(f"report: {report}")


def _load_explain(model: Path) -> Any:
    """`hill.explain.explain`, or None for an exported model, which has no gradients and does not import torch."""
    if is_exported(model):
        return None
    from hill.explain import explain

    return explain


# Predict


@app.command()
def predict(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of standard input.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--input", help="Texts: JSONL, CSV, Excel or Parquet; a file, a folder, a 'glob*' or a URI."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", help="A .csv, .jsonl or .parquet file; or a folder of Parquet files that can be resumed."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, help="Also give the best labels that are not predicted, this many, with their scores.")
    ] = 0,
    with_text: Annotated[bool, typer.Option("--with-text", help="With --output: rows carry the text.")] = False,
    text_column: TextColumn = "text",
    engine: Annotated[str, typer.Option(help="With a folder as --output: local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int, typer.Option(help="With a folder: processes, or Ray actors. 0: one process, or one actor per GPU or core.")
    ] = 0,
    strict: Annotated[bool, typer.Option(help="With a folder: exit with 1 if a row could not be predicted.")] = False,
    as_json: Json = False,
) -> None:
    """Predict the labels of texts."""
    with pause_gc():
        from hill.bulk import RowOptions, check_target, predict_file, prediction_document
    from hill.data.documents import text_problem
    from hill.errors import ConfigError, DataError
    from hill.settings import check_at_least

    if (source is None) != (target is None) or (source and texts):
        raise ConfigError("give texts, or --input and --output together")
    if source == "":
        raise ConfigError("--input is empty; expected a file, a folder, a 'glob*' or a URI")
    check_at_least(workers, 0, "--workers")
    options = RowOptions(text_column, with_text, top)
    if source and target and (target.is_dir() or not target.suffix):
        _predict_to_folder(model, source, target, engine, workers, strict, as_json, options)
        return
    if engine != "local" or workers > 1:
        given = f"--output is '{target}'" if target else "--output is missing"
        raise ConfigError(f"{given}; for several workers or Ray give it a folder, such as labels")
    if target:
        check_target(target)
    classifier = load_model(model)
    if source and target:
        with counting("documents") as tick:
            count = predict_file(classifier, Path(source), target, tick, options)
        print(f"{counted(count, 'prediction')} in {target}")
        return
    texts = texts or [line.strip() for line in sys.stdin if line.strip()]
    for number, text in enumerate(texts, start=1):
        if problem := text_problem(text):
            place = "the text" if len(texts) == 1 else f"text {number} of {len(texts)}"
            raise DataError(f"{place} {problem}")
    predictions, taxonomy = list(zip(texts, classifier.predictions(texts, top), strict=True)), classifier.taxonomy
    if as_json:
        documents = [{"text": text, **prediction_document(prediction, taxonomy)} for text, prediction in predictions]
        print(json.dumps(documents, ensure_ascii=False))
        return
    for text, prediction in predictions:
        scores = dict(zip(prediction.labels, prediction.scores, strict=True))
        print(printable(text if len(text) <= 100 else f"{text[:99]}…"))
        for path in prediction.paths:
            names = " > ".join(taxonomy[taxonomy.row(label)].name for label in path)
            print(f"  {scores[path[-1]]:.3f}  {printable(names)}")
        if not prediction.paths:
            print("  no label scores above the threshold")
        for number, (label, score) in enumerate(prediction.runners_up or ()):
            if not number:
                print("  not predicted, but next best:")
            print(f"  {score:.3f}  {printable(taxonomy.path_name(taxonomy.row(label)))}")


def _predict_to_folder(
    model: Path, source: str, target: Path, engine: str, workers: int, strict: bool, as_json: bool, options: Any
) -> None:
    from functools import partial

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hill.bulk import Bulk

    bulk = Bulk(partial(load_model, model.resolve()), model, source, target, engine, workers, options=options)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("parts, {task.fields[rows]:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, n_rows = progress.add_task("", total=len(bulk.parts), rows=0), 0
        for rows in bulk.run():
            n_rows += rows
            progress.update(task, completed=len(bulk.written), rows=n_rows)
    if as_json:
        totals = {"parts": len(bulk.written), "rows": bulk.rows, "errors": bulk.bad, "example": bulk.example}
        print(json.dumps(totals, ensure_ascii=False))
    else:
        print(f"{counted(bulk.rows, 'row')} in {counted(len(bulk.written), 'part')} in {target}")
    if bulk.bad:
        sys.stderr.write(
            f"hill: rows with an error instead of labels: {bulk.bad:,}, such as {printable(bulk.example)}\n"
        )
    if bulk.bad and (strict or bulk.bad == bulk.rows):
        raise typer.Exit(1)


# Suggest


@app.command()
def suggest(
    model: Model,
    texts: Annotated[Path, typer.Argument(help="Unlabelled texts: JSONL, CSV or Parquet with text; a file or folder.")],
    out: Annotated[Path, typer.Option(help="Queue of documents to label, a .jsonl file.")],
    count: Annotated[int, typer.Option(help="How many documents to choose.", min=1)] = 100,
    labelled: Annotated[
        Path | None, typer.Option(help="Documents labelled since the model was trained; they are not suggested again.")
    ] = None,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
) -> None:
    """Choose documents to label next: of rare labels first, and of each label the most uncertain ones."""
    from hill.data import read_data
    from hill.data.answers import read_answers
    from hill.data.readers import find_splits, format_of, read_fields
    from hill.io import write_text
    from hill.suggest import label_support
    from hill.suggest import suggest as choose_documents

    check_new_file(out, ".jsonl")
    classifier = load_model(model)
    records = list(read_fields([file for split in find_splits(texts).values() for file in split], text_column))
    columns = (text_column, labels_column or "labels", separator)
    known = list(read_data(labelled, classifier.taxonomy, *columns).values()) if labelled else []
    if labelled and labelled.is_file() and format_of(labelled) == "answers":
        skipped = {answer.text for answer in read_answers(labelled) if answer.action == "skip"}
        records = [record for record in records if record[1] not in skipped]
    support = label_support(classifier, known)
    chosen = choose_documents(classifier, [text for _, text in records], support, count, known)
    queue = [{"id": records[each.index][0], "text": records[each.index][1], **each.to_dict()} for each in chosen]
    write_text(out, "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in queue))
    leaves = len({label for each in chosen for label in each.labels})
    print(f"{len(queue):,} documents, probably of {leaves:,} labels, in {out}")


# Explain


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    text: Annotated[str, typer.Argument(help="The text.")],
    label: Annotated[list[str] | None, typer.Option(help="Explain this label; may be repeated.")] = None,
    method: Annotated[str, typer.Option(help="integrated, or gradient: faster, less exact.")] = "integrated",
    steps: Annotated[int, typer.Option(help="Steps of integrated gradients; 0: as many as are needed.")] = 0,
    top: Annotated[int, typer.Option(help="How many words for and against each label to print.", min=1)] = 10,
    html: Annotated[Path | None, typer.Option(help="Write a page with coloured words to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show which words raise or lower the score of each label."""
    from hill.explain import explain as explain_text
    from hill.io import write_text

    explanation = explain_text(load_model(model), text, label, method, steps)
    if html:
        write_text(html, explanation.html())
    if as_json:
        print(json.dumps(explanation.to_dict(), ensure_ascii=False))
        return
    print(printable(explanation.text(top)))
    if explanation.read < len(text.rstrip()):
        print(f"the model reads {explanation.read:,} of the {len(text):,} characters of this text")
    if html:
        print(f"page: {html}")


# Serve


@app.command()
def serve(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained or exported models; the first is default.")],
    review: Annotated[
        Path | None, typer.Option(help="Queue of documents to review, from hill suggest: the page has a Review tab.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="Answers file of --review. Default: answers.sqlite beside the queue.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. If other machines can reach it, it needs an API key, or --public."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8000,
    public: Annotated[
        bool, typer.Option("--public", help="Accept requests from other machines without an API key.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Accept this name in the Host header; may be repeated, '*' accepts every name."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Maximum number of texts per batch.")] = 64,
    wait_ms: Annotated[
        float, typer.Option(help="Milliseconds that an idle server waits for more texts before it predicts a batch.")
    ] = 2.0,
    queue: Annotated[int, typer.Option(help="Maximum number of waiting texts; further requests get status 503.")] = 512,
    timeout: Annotated[
        float, typer.Option(help="Seconds to receive a body, and to predict it; slower requests get status 408 or 504.")
    ] = 30.0,
    max_texts: Annotated[
        int, typer.Option(help="Maximum number of texts per request; larger requests get status 422.")
    ] = 256,
    max_body: Annotated[
        int, typer.Option(help="Maximum number of bytes per request; larger requests get status 413.")
    ] = 4_000_000,
    idle_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that a connection may take to send the headers of its next request before it is closed."
        ),
    ] = 10.0,
    max_connections: Annotated[
        int,
        typer.Option(
            help="Maximum number of open connections per client address (429); three times as many in total (503)."
        ),
    ] = 200,
) -> None:
    """Serve models over HTTP, with an API and a web page. The environment variable HILL_API_KEY sets an API key."""
    from hill.errors import ConfigError, need
    from hill.serve import ServeConfig

    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client", "python_multipart"):
        need(package, "serve", "hill serve")
    if answers and not review:
        raise ConfigError(f"--answers is '{answers}', but there is no --review; give the queue of documents to review")
    config = ServeConfig(
        host=host,
        port=port,
        public=public,
        allow_host=tuple(allow_host or ()),
        batch=batch,
        wait_ms=wait_ms,
        queue=queue,
        timeout=timeout,
        max_texts=max_texts,
        max_body=max_body,
        idle_timeout=idle_timeout,
        max_connections=max_connections,
    )
    with pause_gc():
        from hill.serve.app import bind
        from hill.serve.app import serve as run_server
        from hill.serve.registry import ModelRegistry
        from hill.serve.review import Review

    with bind(config, bool(review)) as bound:  # before the models are loaded: an invalid address fails at once
        registry = ModelRegistry((folder, load_model(folder), _load_explain(folder)) for folder in models)
        taxonomy = registry.default.predictor.taxonomy
        opened = Review(review, answers or review.with_name("answers.sqlite"), taxonomy) if review else None
        run_server(registry, config, bound, opened)


# Export and model card


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    onnx: Annotated[Path, typer.Option(help="Folder to write the ONNX model to: fast on a CPU, without torch.")],
    int8: Annotated[bool, typer.Option(help="Use 8-bit integers: faster, with slightly different scores.")] = True,
) -> None:
    """Export a model to ONNX. `hill predict`, `hill evaluate` and `hill serve` accept the exported folder."""
    from hill.classifier import HillClassifier
    from hill.export.onnx import export_onnx, exportable_members

    classifier = HillClassifier.load(model, device="cpu")
    export_onnx(classifier, onnx, int8)
    if classifier.members and not exportable_members(classifier):
        names = ", ".join(member.name for member in classifier.members)
        print(
            f"exported without its ensemble members ({names}), since only linear ones can be exported, with thresholds "
            f"tuned for '{classifier.name}' alone; to see what that costs: hill evaluate {onnx} DATA"
        )
    print(f'exported to {onnx}; try: hill predict {onnx} "a text"')


@app.command()
def card(model: Annotated[Path, typer.Argument(help="Folder of a trained model.")]) -> None:
    """Print the model card: data, labels, metrics, settings and limits, from the files of the model."""
    from hill.card import read_card

    print(read_card(model), end="")
