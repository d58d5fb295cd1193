"""Commands that make models: start, train, ensemble, settings, demo."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import (
    TAXONOMY_HELP,
    Data,
    LabelsColumn,
    Language,
    Separator,
    TaxonomyFile,
    TextColumn,
    app,
    print_metrics,
)


@app.command()
def start(
    taxonomy: Annotated[Path, typer.Argument(help=TAXONOMY_HELP)],
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    texts: Annotated[
        Path | None, typer.Option(help="Unlabelled texts like those to classify: JSONL, CSV or Parquet with text.")
    ] = None,
    encoder: Annotated[str, typer.Option(help="Text encoder: minilm, mpnet, a folder, or a hub name.")] = "minilm",
    text_column: TextColumn = "text",
    language: Language = "en",
) -> None:
    """Make a model from the names and descriptions of labels, without labelled documents."""
    from rich.console import Console

    from hill.cold_start import check_names, cold_start
    from hill.data.readers import find_splits, read_fields
    from hill.errors import DataError
    from hill.taxonomy import read_taxonomy
    from hill.train.checkpoint import check_output_folder

    labels = read_taxonomy(taxonomy, language)
    check_names(labels)
    check_output_folder(out, resume=False)
    files = [file for split in find_splits(texts).values() for file in split] if texts else []
    unlabelled = [text for _, text in read_fields(files, text_column)]
    if texts and not unlabelled:
        raise DataError(f"'{texts}' has no texts; give some like those to classify, or leave --texts out")
    with Console(stderr=True).status("encoding labels and texts"):
        classifier = cold_start(labels, unlabelled, encoder)
    record = classifier.training_record["cold_start"]
    for warning in record["warnings"]:
        sys.stderr.write(f"hill: {warning}\n")
    classifier.save(out)
    described = sum(bool(label.description.strip()) for label in labels)
    print(f"{len(labels):,} labels, {described:,} with a description; {record['texts']:,} unlabelled texts")
    print("no labelled document was used: scores are only roughly calibrated, and nothing was measured")
    if not texts:
        print("texts like those to classify, even unlabelled, make it better: --texts FILE")
    print(f'saved to {out}; try: hill predict {out} "a text"')


@app.command()
def train(
    data: Data,
    taxonomy: TaxonomyFile,
    out: Annotated[Path, typer.Option(help="Folder for the model, its log and its checkpoints.")],
    model: Annotated[str, typer.Option(help="Name of the model, such as hill (docs/models.md).")] = "hill",
    preset: Annotated[
        str, typer.Option(help="auto: the best settings we know for your data; fast; paper: as published; none.")
    ] = "auto",
    minutes: Annotated[
        float | None, typer.Option(help="Time limit. Default: none on a GPU, 30 minutes on a CPU.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Text encoder: minilm, mpnet, a folder, or a hub name.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with groups model, train, data, decode.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting: train.epochs=5.")] = None,
    warm_start: Annotated[Path | None, typer.Option(help="Trained model to start from.")] = None,
    add: Annotated[
        Path | None,
        typer.Option(help="With --warm-start: train on these new documents and a sample of those in DATA."),
    ] = None,
    test_share: Annotated[
        float | None, typer.Option(help="One file without splits: share that is held out as test. 0: none.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted training.")] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble/--no-ensemble", help="Mix the scores with those of a linear model.")
    ] = True,
    plain: Annotated[bool, typer.Option("--plain", help="The slow and simple loop: fp32, padded batches.")] = False,
    track: Annotated[
        str | None, typer.Option(help="Also log to tensorboard, mlflow or wandb (docs/training.md).")
    ] = None,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
    language: Language = "en",
) -> None:
    """Train a model and save it. `hill settings` lists every setting."""
    from hill.classifier import GROUPS, HillClassifier
    from hill.data import read_data
    from hill.data.documents import join_splits
    from hill.errors import ConfigError, DataError, counted
    from hill.presets import PRESETS
    from hill.settings import check_one_of, read_settings
    from hill.taxonomy import read_taxonomy
    from hill.train.checkpoint import check_output_folder
    from hill.train.distributed import init_distributed
    from hill.train.progress import training_progress
    from hill.train.tracking import TRACKERS, open_tracker
    from hill.train.warm_start import warm_settings, with_replay

    settings = read_settings(config, assignments or [], GROUPS)
    name = settings["model"].pop("name", model)
    if encoder is not None:
        settings["model"]["encoder"] = encoder
    if minutes is not None:
        settings["train"]["minutes"] = minutes
    if not ensemble:
        settings["train"]["ensemble"] = False
    if plain:
        settings["train"]["plain"] = True
    if test_share is not None:
        settings["data"]["test_share"] = test_share
    if add and not warm_start:
        raise ConfigError(f"--add is '{add}', but there is no --warm-start; give the model to continue from")
    if warm_start:
        old, settings = warm_settings(warm_start, settings)
        if name not in ("hill", old):
            raise ConfigError(f"--model is '{name}', but '{warm_start}' is a '{old}'; leave --model out")
        name = old
    check_one_of(preset, PRESETS, "preset")
    if track:
        check_one_of(track, TRACKERS, "tracker")
    classifier = HillClassifier(read_taxonomy(taxonomy, language), name, settings, preset)
    check_output_folder(out, resume, data)
    with _exit_on_signal(), (context := init_distributed(classifier.train_config.device)).lock(out):
        columns = text_column, labels_column or "labels", separator
        try:
            splits = read_data(data, classifier.taxonomy, *columns)
        except DataError as error:
            if warm_start and "is not in the taxonomy" in str(error):
                error = DataError(f"{error}. If the label was removed or split: hill taxonomy recode --help")
            raise error from None
        if test_share is not None and list(splits) != ["data"] and context.is_main:
            sys.stderr.write(f"hill: --test-share is not used: the data has splits of its own ({', '.join(splits)})\n")
        documents = classifier.hold_out_test(splits)
        if add:
            new = join_splits(read_data(add, classifier.taxonomy, *columns))
            if not len(new):
                raise DataError(f"--add is '{add}', which has no documents; give new ones, or leave it out")
            documents = with_replay(documents, new, classifier.data_config.dev_share, classifier.train_config.seed)
        with open_tracker(track, out, resume) if track and context.is_main else nullcontext() as tracker:
            with training_progress(classifier.train_config.metric, shown=context.is_main) as bar:
                for event in classifier.training(documents, out, resume):
                    bar.show(event)
                    if tracker:
                        tracker.log(event)
            warning = ""
            if "test" in documents:
                few = classifier.data_config.max_test
                test, warning = classifier.evaluation_documents(documents["test"].sample(few or len(documents["test"])))
                classifier.metrics = classifier.evaluate(test, include_seen=True) | {"split": "test"}
            if tracker:
                tracker.log_metrics(classifier.metrics)
        if context.is_main:
            if warning:
                sys.stderr.write(f"hill: test: {warning}\n")
            if classifier.warm_start_report:
                print(f"started from {warm_start}: {classifier.warm_start_report}")
            classifier.save(out)
            print_metrics(classifier.metrics, hint=f"all metrics are in {out / 'metrics.json'}")
            if classifier.decode_note:
                print(classifier.decode_note)
            if classifier.metrics["split"] == "dev":
                print(
                    "the dev set also selected the epoch, thresholds and calibration; expect slightly lower scores on "
                    "new data"
                )
            if tracker:
                print(f"logged to {tracker.place}")
                if tracker.problem:
                    sys.stderr.write(f"hill: --track {track}: {tracker.problem}\n")
            if "data" in documents and "test" in documents:
                command = ["hill", "evaluate", str(out), str(data)]
                command += ["--text-column", text_column] if text_column != "text" else []
                command += [word for column in labels_column or () for word in ("--labels-column", column)]
                command += ["--separator", separator] if separator else []
                print(f"{counted(len(documents['test']), 'document')} held out as test: {shlex.join(command)}")
            print(f'saved to {out}; try: hill predict {out} "a text"')
    context.close()


@contextmanager
def _exit_on_signal() -> Iterator[None]:
    """Say how to continue an interrupted training, and exit with the code of the signal."""
    from hill.train.distributed import Stopped

    try:
        yield
    except Stopped as stopped:
        sys.stderr.write(f"hill: {stopped}\n")
        raise typer.Exit(stopped.code) from None
    except KeyboardInterrupt:
        sys.stderr.write("hill: stopped at once; to continue, add --resume\n")
        raise typer.Exit(130) from None


@app.command()
def ensemble(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained models with the same taxonomy.")],
    data: Annotated[Path, typer.Option(help="Documents that fit the weights: a file, or the dev split of a folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the ensemble.")],
) -> None:
    """Mix the scores of trained models; the weights are fitted on documents that none of them was trained on."""
    from hill.classifier import HillClassifier
    from hill.data import read_data
    from hill.errors import ConfigError
    from hill.io import check_model
    from hill.train.checkpoint import check_output_folder

    for folder in models:
        check_model(folder)
    check_output_folder(out, False, data)
    splits = read_data(data, HillClassifier.load(models[0]).taxonomy)
    documents = splits.get("dev") or splits.get("data")
    if not documents:
        raise ConfigError(f"'{data}' has {', '.join(splits)}, but no dev split; give a file, or a folder with dev")
    classifier = HillClassifier.ensemble(models, documents)
    classifier.save(out)
    print_metrics(classifier.metrics)
    print(classifier.decode_note)
    assert classifier.mixture is not None
    for model, weights in zip((classifier, *classifier.members), classifier.mixture.weights, strict=True):
        print(f"weights of {model.name} per level: {', '.join(f'{weight:.2f}' for weight in weights)}")
    print(f'saved to {out}; try: hill predict {out} "a text"')


@app.command()
def settings(model: Annotated[str, typer.Option(help="Name of the model.")] = "hill") -> None:
    """List every setting of training with its default, for `--set` and `--config`."""
    from rich.console import Console
    from rich.table import Table

    from hill.classifier import config_types
    from hill.settings import describe

    table = Table(box=None, pad_edge=False)
    for column in ("setting", "type", "default", ""):
        table.add_column(column)
    for group, kind in config_types(model).items():
        for key, kind_name, default, text in describe(kind):
            table.add_row(f"{group}.{key}", kind_name, str(default), text)
    Console().print(table)


@app.command()
def demo(
    categories: Annotated[bool, typer.Option("--categories", help="Predict categories instead of blocks.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("runs/demo"),
) -> None:
    """Train, evaluate and use a model on included data (ICD-10-CM coding)."""
    from hill.demo import run_demo

    run_demo(categories, out)
