"""The command line: parse, call, print."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.errors import HillError

app = typer.Typer(
    help="Classify text into a taxonomy.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)

DATA_HELP = "JSONL, CSV or Parquet with text and labels, or a folder with train, dev and test files."
TAXONOMY_HELP = "The labels and their parents: a table, parent-child lines, paths, JSON or SKOS."

Data = Annotated[Path, typer.Argument(help=DATA_HELP)]
TaxonomyFile = Annotated[Path, typer.Option("--taxonomy", help=TAXONOMY_HELP)]
Language = Annotated[str, typer.Option(help="Language of the labels, where the taxonomy has several.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def main() -> None:
    """Run the command line; an error we know is one line and exit code 2."""
    try:
        app()
    except HillError as error:
        sys.stderr.write(f"hill: {error}\n")
        raise SystemExit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hill {version('hill-htc')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _hill(version: Version = False) -> None:
    pass


@app.command()
def check(data: Data, taxonomy: TaxonomyFile, language: Language = "en", as_json: Json = False) -> None:
    """Tell whether data is fit to train on; name file, line and remedy where it is not."""
    from rich.console import Console

    from hill.data.check import check as check_data
    from hill.data.report import print_check
    from hill.taxonomy import read_taxonomy

    labels = read_taxonomy(taxonomy, language)
    with _counting("documents") as tick:
        found = check_data(data, labels, tick)
    if as_json:
        print(json.dumps(found.document(), ensure_ascii=False))
    else:
        print_check(found, Console())
    raise typer.Exit(0 if found.fit else 1)


@app.command()
def tree(
    taxonomy: Annotated[Path, typer.Argument(help=TAXONOMY_HELP)],
    height: Annotated[int, typer.Option(help="Height of the coding tree: edges from the root to every label.")] = 3,
    method: Annotated[
        str, typer.Option(help="paper, authors (released code) or refined (lowest entropy).")
    ] = "refined",
    compare: Annotated[bool, typer.Option("--compare", help="Print all methods side by side.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the tree beside the taxonomy: tree.svg, .png, .pdf.")] = None,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Build the coding tree of a taxonomy: the tree that encodes it in the fewest bits."""
    from rich.console import Console

    from hill.taxonomy import read_taxonomy
    from hill.tree.build import METHODS, build_tree
    from hill.tree.drawing import draw_tree
    from hill.tree.report import print_comparison, print_tree

    labels = read_taxonomy(taxonomy, language)
    with Console(stderr=True).status("building the coding tree"):
        trees = [build_tree(labels, height, name) for name in (METHODS if compare else [method])]
        if plot:
            draw_tree(labels, trees[-1], plot)
    if as_json:
        documents = [built.document() for built in trees]
        print(json.dumps({"trees": documents} if compare else documents[0]))
    elif compare:
        print_comparison(labels, trees, Console())
    else:
        print_tree(labels, trees[0], Console())


@app.command()
def train(
    data: Data,
    taxonomy: TaxonomyFile,
    out: Annotated[Path, typer.Option(help="Folder for the model, its log and its checkpoints.")],
    model: Annotated[str, typer.Option(help="Name of the model: hill, or a rival (docs/models.md).")] = "hill",
    encoder: Annotated[str | None, typer.Option(help="Text encoder: minilm, a folder, or a hub name.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with groups model, train, data, decode.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting: train.epochs=5.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped training was.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="The slow and obvious loop: fp32, padded batches.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    language: Language = "en",
) -> None:
    """Train a model and save it. `hill settings` lists every setting."""
    from hill.classifier import GROUPS, HillClassifier
    from hill.data import read_data
    from hill.settings import read_settings
    from hill.taxonomy import read_taxonomy
    from hill.train.bar import training_bar
    from hill.train.run import check_out

    settings = read_settings(config, assignments or [], GROUPS)
    name = settings["model"].pop("name", model)
    if encoder:
        settings["model"]["encoder"] = encoder
    if plain:
        settings["train"]["plain"] = True
    classifier = HillClassifier(read_taxonomy(taxonomy, language), name, settings)
    check_out(out, resume)
    documents = read_data(data, classifier.taxonomy)
    with training_bar(classifier.train_config.metric) as bar:
        for report in classifier.training(documents, out, resume, tensorboard):
            bar.show(report)
    if "test" in documents:
        classifier.metrics = classifier.evaluate(documents["test"]) | {"split": "test"}
    classifier.save(out)
    _print_metrics(classifier.metrics)
    print(f'saved to {out}; try: hill predict {out} "a text"')


@app.command()
def settings(model: Annotated[str, typer.Option(help="Name of the model.")] = "hill") -> None:
    """List every setting of training with its default, for `--set` and `--config`."""
    from rich.console import Console
    from rich.table import Table

    from hill.classifier import GROUPS, DataConfig
    from hill.decode import DecodeConfig
    from hill.models import MODELS
    from hill.settings import describe, one_of
    from hill.train import TrainConfig

    one_of(model, MODELS, "model")
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "type", "default", ""):
        table.add_column(column)
    kinds: tuple[type, ...] = (MODELS[model].Config, TrainConfig, DataConfig, DecodeConfig)
    for group, kind in zip(GROUPS, kinds, strict=True):
        for key, kind_name, default, text in describe(kind):
            table.add_row(f"{group}.{key}", kind_name, str(default), text)
    Console().print(table)


Model = Annotated[Path, typer.Argument(help="Folder of a trained model, or of an exported one.")]


@app.command()
def evaluate(model: Model, data: Data, as_json: Json = False) -> None:
    """Score a model on data: of a folder, its test split."""
    result = _load(model).evaluate(data)
    if as_json:
        print(json.dumps(result))
    else:
        _print_metrics(result)


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
    classifier = _load(model)
    if source and target:
        with _counting("documents") as tick:
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
    onnx: Annotated[Path, typer.Option(help="Folder for the ONNX graph and all that predicting needs.")],
    int8: Annotated[bool, typer.Option(help="In 8-bit integers: faster on a CPU, scores differ a little.")] = True,
) -> None:
    """Export a model for fast prediction on a CPU; `hill predict` and `hill evaluate` take the folder."""
    from hill.classifier import HillClassifier
    from hill.export.onnx import export_onnx

    export_onnx(HillClassifier.load(model, device="cpu"), onnx, int8)
    print(f'exported to {onnx}; try: hill predict {onnx} "a text"')


@app.command()
def demo(
    categories: Annotated[bool, typer.Option("--categories", help="Code to 1,918 categories, not blocks.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("runs/demo"),
) -> None:
    """Train, evaluate and try a real model on embedded data (ICD-10-CM coding)."""
    from hill.demo import run_demo

    run_demo(categories, out)


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="main-table, ablation, heights, trees or cost.")],
    data: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    out: Annotated[Path, typer.Option(help="Folder for runs, tables and figures; experiments may share it.")],
    taxonomy: Annotated[Path | None, typer.Option(help="Default: the file taxonomy.* of the data folder.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Text encoder of all rows that have one.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 7,8,9.")] = "5",
    rows: Annotated[Path | None, typer.Option(help="Folder with one TOML a row.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this row alone; may be repeated.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting of all rows.")] = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep trained models under OUT/models.")] = False,
) -> None:
    """Make a table of the paper on any data: runs what is missing, keeps what is done, writes table and report."""
    from hill.experiment.program import run_experiment

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
        models=out / "models" if keep_models else None,
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


data_app = typer.Typer(help="Data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="wos, rcv1 or nyt.")],
    source: Annotated[Path, typer.Option(help="Folder of the original distribution.")],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
) -> None:
    """Turn an original distribution into train, dev and test files with the standard splits."""
    from hill.data.prepare import prepare as prepare_data

    with _counting("documents") as tick:
        prepared = prepare_data(name, source, out, tick)
    for split, count in prepared.documents.items():
        print(f"{split}: {count:,} documents")
    print(f"{prepared.labels} labels in {out / 'taxonomy.json'}")
    for note in prepared.notes:
        print(f"note: {note}")


def _load(folder: Path) -> Any:
    """A trained or an exported model; without torch where it is exported."""
    from hill.export import OnnxClassifier
    from hill.export.folder import is_export

    if is_export(folder):
        return OnnxClassifier.load(folder)
    from hill.classifier import HillClassifier

    return HillClassifier.load(folder)


@contextmanager
def _counting(what: str) -> Iterator[Callable[[int], None]]:
    """A count on standard error while something long runs."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + what), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda count: progress.advance(task, count)


def _print_metrics(metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if isinstance(value, float):
            print(f"{name:34} {value:.4f}")
        elif name != "levels":
            print(f"{name:34} {value}")
    for level in metrics.get("levels", []):
        values = "  ".join(f"{key} {level[key]:.4f}" for key in ("micro_f1", "macro_f1"))
        print(f"level {level['level']} ({level['labels']:,} labels)".ljust(34), values)


def _print_prediction(taxonomy: Any, text: str, prediction: Any) -> None:
    scores = dict(zip(prediction.labels, prediction.scores, strict=True))
    print(text if len(text) <= 100 else f"{text[:99]}…")
    for path in prediction.paths:
        names = " > ".join(taxonomy[taxonomy.row(label)].name for label in path)
        print(f"  {scores[path[-1]]:.3f}  {names}")
    if not prediction.paths:
        print("  no label scores above the threshold")
