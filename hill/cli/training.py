"""Commands that train."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import Data, Language, TaxonomyFile, app, print_metrics


@app.command()
def train(
    data: Data,
    taxonomy: TaxonomyFile,
    out: Annotated[Path, typer.Option(help="Folder for the model, its log and its checkpoints.")],
    model: Annotated[str, typer.Option(help="Name of the model: hill, or a rival (docs/models.md).")] = "hill",
    encoder: Annotated[str | None, typer.Option(help="Text encoder: minilm, a folder, or a hub name.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with groups model, train, data, decode.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting: train.epochs=5.")] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="Trained model to start from; its taxonomy may be another version.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped training was.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="The slow and obvious loop: fp32, padded batches.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    language: Language = "en",
) -> None:
    """Train a model and save it. `hill settings` lists every setting."""
    from hill.classifier import GROUPS, HillClassifier
    from hill.data import read_data
    from hill.errors import ConfigError
    from hill.settings import read_settings
    from hill.taxonomy import read_taxonomy
    from hill.train.bar import training_bar
    from hill.train.ranks import join
    from hill.train.run import check_out
    from hill.train.warm import warm_settings

    settings = read_settings(config, assignments or [], GROUPS)
    name = settings["model"].pop("name", model)
    if encoder:
        settings["model"]["encoder"] = encoder
    if plain:
        settings["train"]["plain"] = True
    if warm_start:
        old, settings = warm_settings(warm_start, settings)
        if name not in ("hill", old):
            raise ConfigError(f"--model is '{name}', but '{warm_start}' is a '{old}'; leave --model out")
        name = old
    classifier = HillClassifier(read_taxonomy(taxonomy, language), name, settings)
    check_out(out, resume)
    with _resumable(), (ranks := join(classifier.train_config.device)).claiming(out):
        if ranks.is_main:  # the others find it claimed
            check_out(out, resume)
        documents = read_data(data, classifier.taxonomy)
        with training_bar(classifier.train_config.metric, shown=ranks.is_main) as bar:
            for report in classifier.training(documents, out, resume, tensorboard):
                bar.show(report)
        if "test" in documents:
            classifier.metrics = classifier.evaluate(documents["test"]) | {"split": "test"}
        if ranks.is_main:
            if classifier.warmed:
                print(f"started from {warm_start}: {classifier.warmed}")
            classifier.save(out)
            print_metrics(classifier.metrics)
            if classifier.metrics["split"] == "dev":
                print("dev decided on epoch, thresholds and calibration: of new documents expect somewhat less")
            print(f'saved to {out}; try: hill predict {out} "a text"')
    ranks.leave()


@contextmanager
def _resumable() -> Iterator[None]:
    """A training that is told to stop says how to go on, and exits with the code of the signal."""
    from hill.train.stop import Stopped

    try:
        yield
    except KeyboardInterrupt as stopped:
        told = isinstance(stopped, Stopped)
        sys.stderr.write(f"hill: {stopped if told else 'stopped at once; to go on, add --resume'}\n")
        raise typer.Exit(stopped.code if isinstance(stopped, Stopped) else 130) from None


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


@app.command()
def demo(
    categories: Annotated[bool, typer.Option("--categories", help="Code to 1,918 categories, not blocks.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("runs/demo"),
) -> None:
    """Train, evaluate and try a real model on embedded data (ICD-10-CM coding)."""
    from hill.demo import run_demo

    run_demo(categories, out)
