"""Logs of trainings for TensorBoard, MLflow and Weights & Biases.

The caller passes the events of a training to a tracker, and at the end the metrics of the trained model:

    with open_tracker("mlflow", out) as tracker:
        for event in classifier.training(data, out):
            tracker.log(event)
        tracker.log_metrics(classifier.metrics)
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from hill.errors import ConfigError, need
from hill.io import error_reason, read_object, write_json
from hill.settings import check_one_of
from hill.train.checkpoint import LOG_STEPS
from hill.train.trainer import Epoch, Resumed, Started, Step, TrainingEvent

RUN_FILE = "tracking.json"
"""The id of the run, in the folder of the training: a training that is resumed continues its run."""
MAX_PARAMETERS = 100
"""Parameters that MLflow takes in one request."""


class Tracker(ABC):
    """Logs settings, losses and metrics by the steps of the training.

    Args:
        out: the folder of the training; its name is the name of the run.
        run: the id of the run to continue, or empty.
    """

    remedy: ClassVar[str] = ""
    """What to do if the client cannot start."""
    run = ""
    """The id of the run."""
    place = ""
    """Where the run can be seen."""
    problem = ""
    """Why logging ended before the training, if so: a training does not fail because its tracker does."""

    def __init__(self, out: Path, run: str) -> None:
        self._out = out
        self._resumed = bool(run)
        self._step = 0

    def log(self, event: TrainingEvent) -> None:
        """Log the settings when the training starts, the loss of every tenth step, and dev after each evaluation."""
        if isinstance(event, Started):
            write_json(self._out / RUN_FILE, {type(self).__name__: self.run})
            if not self._resumed:
                groups = event.settings.items()
                self._try(
                    self.log_settings, {f"{group}.{key}": value for group, of in groups for key, value in of.items()}
                )
        elif isinstance(event, Resumed):
            self._step = event.step
        elif isinstance(event, Step):
            self._step = event.step
            if event.step % LOG_STEPS == 0:
                losses = {"loss": event.loss.item()} | {name: part.item() for name, part in event.parts.items()}
                self._log_numbers("train", losses | {"learning_rate": event.rate})
        elif isinstance(event, Epoch):
            self._log_numbers("dev", event.metrics | {"epoch": event.epoch})

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of the trained model as `test`, or as `final_dev` if there is no test split."""
        self._log_numbers("test" if metrics.get("split") == "test" else "final_dev", metrics)

    def _log_numbers(self, split: str, values: Mapping[str, Any]) -> None:
        numbers = {f"{split}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}
        self._try(self.log_values, numbers, self._step)

    def _try(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the client; after an error nothing more is logged."""
        if not self.problem:
            try:
                function(*arguments)
            except Exception as error:  # clients raise errors of many libraries
                self.problem = f"nothing is logged after step {self._step:,}: {error_reason(error)}"

    def close(self, failed: bool) -> None:
        """End the run."""
        self._try(self.end, failed)

    @abstractmethod
    def log_settings(self, settings: dict[str, Any]) -> None:
        """Log settings by their full names, such as train.epochs."""

    @abstractmethod
    def log_values(self, values: dict[str, float], step: int) -> None:
        """Log numbers by name at a step."""

    @abstractmethod
    def end(self, failed: bool) -> None:
        """Say to the client that the run ended."""


class TensorBoard(Tracker):
    """Event files in the subfolder `tensorboard` of the training."""

    def __init__(self, out: Path, run: str) -> None:
        super().__init__(out, run)
        need("tensorboard", "tensorboard", "--track tensorboard")
        self._module = need("torch.utils.tensorboard", "tensorboard", "--track tensorboard")
        self._writer: Any = None
        self.run, self.place = "tensorboard", f"'{out / 'tensorboard'}'"

    def log_settings(self, settings: dict[str, Any]) -> None:
        """Log the settings as a text."""
        self._open().add_text("settings", "\n".join(f"    {name} = {value!r}" for name, value in settings.items()))

    def log_values(self, values: dict[str, float], step: int) -> None:
        """Log scalars."""
        for name, value in values.items():
            self._open().add_scalar(name, value, step)

    def end(self, failed: bool) -> None:
        """Write what is left."""
        self._open().close()

    def _open(self) -> Any:
        """The writer. It makes its folder, so it waits until the training has marked its own."""
        self._writer = self._writer or self._module.SummaryWriter(str(self._out / "tensorboard"))
        return self._writer


class MLflow(Tracker):
    """A run of MLflow at MLFLOW_TRACKING_URI, or in mlflow.db in the current folder."""

    remedy = "check MLFLOW_TRACKING_URI"

    def __init__(self, out: Path, run: str) -> None:
        super().__init__(out, run)
        mlflow = need("mlflow", "mlflow", "--track mlflow")
        need("sqlalchemy", "mlflow", "--track mlflow")
        self._entities = need("mlflow.entities", "mlflow", "--track mlflow")
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hill")
        if run:
            self._client.update_run(run, "RUNNING")
            self.run = run
        else:
            experiment = self._client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else self._client.create_experiment(name)
            self.run = self._client.create_run(number, run_name=out.resolve().name).info.run_id
        self.place = f"run {self.run} of '{name}' at {mlflow.get_tracking_uri()}"

    def log_settings(self, settings: dict[str, Any]) -> None:
        """Log the settings as parameters."""
        parameters = [self._entities.Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self.run, params=parameters[first : first + MAX_PARAMETERS])

    def log_values(self, values: dict[str, float], step: int) -> None:
        """Log metrics."""
        now = round(1000 * time.time())
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run, metrics=metrics)

    def end(self, failed: bool) -> None:
        """End the run; an interrupted one has failed until it is resumed."""
        self._client.set_terminated(self.run, "FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """A run of Weights & Biases; with WANDB_MODE=offline, in the folder `wandb` in the current folder."""

    remedy = "run wandb login, or set WANDB_MODE=offline"

    def __init__(self, out: Path, run: str) -> None:
        super().__init__(out, run)
        wandb = need("wandb", "wandb", "--track wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "hill"),
            name=out.resolve().name,
            id=run or None,
            resume="allow" if run else None,
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run = self._run.id
        self.place = self._run.url or f"'{Path(self._run.dir).parent}'; to upload it, use wandb sync"

    def log_settings(self, settings: dict[str, Any]) -> None:
        """Log the settings as the configuration of the run."""
        self._run.config.update(settings)

    def log_values(self, values: dict[str, float], step: int) -> None:
        """Log metrics."""
        self._run.log(values, step=step)

    def end(self, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


@contextmanager
def open_tracker(name: str, out: Path, resume: bool = False) -> Iterator[Tracker]:
    """A tracker by name, for a training in this folder; it ends with the block."""
    check_one_of(name, TRACKERS, "tracker")
    kind, file = TRACKERS[name], out / RUN_FILE
    run = read_object(file).get(kind.__name__, "") if resume and file.exists() else ""
    try:
        tracker = kind(out, run)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"--track {name} cannot start: {error_reason(error)}; {kind.remedy}") from None
    failed = True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)
