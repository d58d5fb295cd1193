"""Commands that use a trained model."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import Data, Json, Model, app, counting, load_model, print_metrics
from hill.guard import shown


@app.command()
def evaluate(
    model: Model,
    data: Data,
    report: Annotated[
        Path | None, typer.Option(help="File for a report of what goes wrong: .html, a page; .json, its numbers.")
    ] = None,
    explained: Annotated[int, typer.Option(help="Report: errors of each kind that are explained.")] = 4,
    as_json: Json = False,
) -> None:
    """Score a model on data: of a folder, its test split. With --report and --json, print the report's numbers."""
    if report:
        found = _report(model, data, report, explained)
        result = found.document() if as_json else found.document()["metrics"]
    else:
        result = load_model(model).evaluate(data)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print_metrics(result)
    if report:
        print(f"report: {report}")


@app.command()
def predict(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    source: Annotated[
        str | None, typer.Option("--input", help="Texts: JSONL, CSV or Parquet; a file, a folder, a 'glob*' or a URI.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="A .jsonl file; or a folder, for Parquet by parts that can go on.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Into a folder: local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int, typer.Option(help="Into a folder: processes, or actors of Ray; 0: one, or one for each GPU, else core.")
    ] = 0,
    strict: Annotated[
        bool, typer.Option(help="Into a folder: exit with 1 where a row could not be predicted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the labels of texts."""
    from hill.engines.local import predict_file, prediction_document
    from hill.errors import ConfigError

    if (source is None) != (target is None) or (source and texts):
        raise ConfigError("give texts, or --input and --output together")
    if source and target and (target.is_dir() or not target.suffix):
        _predict_parts(model, source, target, engine, workers, strict, as_json)
        return
    if engine != "local" or workers > 1 or (target and target.suffix == ".parquet"):
        raise ConfigError(f"--output is {target}; for Parquet, several workers or Ray give it a folder, such as labels")
    classifier = load_model(model)
    if source and target:
        with counting("documents") as tick:
            count = predict_file(classifier, Path(source), target, tick)
        print(f"{count:,} predictions in {target}")
        return
    asked = texts or [line.strip() for line in sys.stdin if line.strip()]
    found = classifier.predictions(asked)
    if as_json:
        documents = [{"text": t, **prediction_document(p)} for t, p in zip(asked, found, strict=True)]
        print(json.dumps(documents, ensure_ascii=False))
    else:
        for text, prediction in zip(asked, found, strict=True):
            _print_prediction(classifier.taxonomy, text, prediction)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    onnx: Annotated[
        Path | None, typer.Option(help="Folder for an ONNX graph and all that predicting needs: fast on a CPU.")
    ] = None,
    transformers: Annotated[
        Path | None, typer.Option(help="Folder for a stock transformers model, where one can hold the model.")
    ] = None,
    int8: Annotated[bool, typer.Option(help="ONNX in 8-bit integers: faster, scores differ a little.")] = True,
) -> None:
    """Export a model for other programs; `hill predict` and `hill evaluate` take the folder of --onnx."""
    from hill.classifier import HillClassifier
    from hill.errors import ConfigError
    from hill.export.onnx import export_onnx
    from hill.export.stock import export_transformers

    if not onnx and not transformers:
        raise ConfigError("nothing to export to; give --onnx DIR or --transformers DIR")
    classifier = HillClassifier.load(model, device="cpu")
    if onnx:
        export_onnx(classifier, onnx, int8)
        print(f'exported to {onnx}; try: hill predict {onnx} "a text"')
    if transformers:
        export_transformers(classifier, transformers)
        print(f"exported to {transformers}; load it with AutoModelForSequenceClassification")


def _report(model: Path, data: Path, target: Path, explained: int) -> Any:
    """Make a report and write it; what is wrong with its file is told before anything long begins."""
    from hill.export import OnnxClassifier
    from hill.report import make_report
    from hill.report.result import check_target

    check_target(target)
    classifier, explain = load_model(model), None
    if not isinstance(classifier, OnnxClassifier):
        from hill.explain import explain as explain_text

        explain = explain_text
    with counting("documents") as tick:
        found = make_report(classifier, data, explain, explained, tick)
    found.write(target)
    return found


def _predict_parts(
    model: Path, source: str, target: Path, engine: str, workers: int, strict: bool, as_json: bool
) -> None:
    from functools import partial

    from hill.engines.bulk import Bulk

    bulk = Bulk(partial(load_model, model.resolve()), model, source, target, engine, workers)
    with _parts_bar(len(bulk.parts)) as show:
        for rows in bulk.run():
            show(rows, len(bulk.written))
    if as_json:
        totals = {"parts": len(bulk.written), "rows": bulk.rows, "errors": bulk.bad, "example": bulk.example}
        print(json.dumps(totals, ensure_ascii=False))
    else:
        print(f"{bulk.rows:,} rows in {len(bulk.written):,} parts in {target}")
    if bulk.bad:
        sys.stderr.write(f"hill: rows with an error in place of labels: {bulk.bad:,}, such as {shown(bulk.example)}\n")
    if bulk.bad and (strict or bulk.bad == bulk.rows):
        raise typer.Exit(1)


@contextmanager
def _parts_bar(parts: int) -> Iterator[Callable[[int, int], None]]:
    """Parts and rows on standard error while they are written."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    rows = TextColumn("parts, {task.fields[rows]:,} rows")
    columns = (BarColumn(), MofNCompleteColumn(), rows, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=parts, rows=0)
        bar = progress.tasks[0]
        yield lambda more, written: progress.update(task, completed=written, rows=bar.fields["rows"] + more)


def _print_prediction(taxonomy: Any, text: str, prediction: Any) -> None:
    scores = dict(zip(prediction.labels, prediction.scores, strict=True))
    print(shown(text if len(text) <= 100 else f"{text[:99]}…"))
    for path in prediction.paths:
        names = " > ".join(taxonomy[taxonomy.row(label)].name for label in path)
        print(f"  {scores[path[-1]]:.3f}  {shown(names)}")
    if not prediction.paths:
        print("  no label scores above the threshold")
