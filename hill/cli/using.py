"""Commands that use a trained model."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import Data, Json, Model, app, counting, load_model, print_metrics


@app.command()
def evaluate(model: Model, data: Data, as_json: Json = False) -> None:
    """Score a model on data: of a folder, its test split."""
    result = load_model(model).evaluate(data)
    if as_json:
        print(json.dumps(result))
    else:
        print_metrics(result)


@app.command()
def predict(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    source: Annotated[Path | None, typer.Option("--input", help="File of texts: JSONL, CSV or Parquet.")] = None,
    target: Annotated[Path | None, typer.Option("--output", help="File for the predictions: JSONL.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the labels of texts."""
    from hill.engines.local import predict_file, prediction_document
    from hill.errors import ConfigError

    if (source is None) != (target is None) or (source and texts):
        raise ConfigError("give texts, or --input and --output together")
    classifier = load_model(model)
    if source and target:
        with counting("documents") as tick:
            count = predict_file(classifier, source, target, tick)
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


def _print_prediction(taxonomy: Any, text: str, prediction: Any) -> None:
    scores = dict(zip(prediction.labels, prediction.scores, strict=True))
    print(text if len(text) <= 100 else f"{text[:99]}…")
    for path in prediction.paths:
        names = " > ".join(taxonomy[taxonomy.row(label)].name for label in path)
        print(f"  {scores[path[-1]]:.3f}  {names}")
    if not prediction.paths:
        print("  no label scores above the threshold")
