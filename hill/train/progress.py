"""The progress bar of a training: loss, learning rate, speed and remaining time, and one line per epoch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hill.train.trainer import EarlyStop, Epoch, Notice, Resumed, StageProgress, Step, TrainingEvent

READ_STEPS = 5
"""Steps between two updates of the loss: reading it waits for the device."""


class TrainingProgress:
    """Shows the events of a training."""

    def __init__(self, progress: Progress, metric: str) -> None:
        self._progress = progress
        self._metric = metric
        self._task: TaskID | None = None
        self._stage = ""
        self._since = time.perf_counter()
        self._documents = 0

    def show(self, event: TrainingEvent) -> None:
        """Show one event."""
        if isinstance(event, StageProgress):
            self._progress.update(self._begin(event.stage, event.total), completed=event.done)
        elif isinstance(event, Notice):
            self._print(event.text)
        elif isinstance(event, Resumed):
            if event.damaged:
                self._print(f"{event.damaged}; an earlier checkpoint is used")
            self._print(f"resumed after step {event.step:,}")
        elif isinstance(event, Step):
            task = self._begin("training", event.steps)
            self._documents += event.documents
            if event.step % READ_STEPS == 0 or event.step == event.steps:
                speed = self._documents / max(time.perf_counter() - self._since, 1e-9)
                detail = f"loss {event.loss.item():.4f}  rate {event.rate:.1e}  {speed:,.0f} docs/s"
                self._progress.update(task, completed=event.step, detail=detail)
        elif isinstance(event, Epoch):
            names = dict.fromkeys([self._metric, "micro_f1", "macro_f1"])
            values = "  ".join(f"{name} {event.metrics[name]:.4f}" for name in names if name in event.metrics)
            mark = "  best so far" if event.improved else ""
            skipped = f"  {event.metrics['skipped']:,} steps skipped" if event.metrics.get("skipped") else ""
            if values or skipped:
                self._print(f"epoch {event.epoch}: dev {values}{skipped}{mark}")
        elif isinstance(event, EarlyStop):
            epochs = event.epoch - event.best_epoch
            count = "1 epoch" if epochs == 1 else f"{epochs} epochs"
            self._print(
                f"stopped after epoch {event.epoch}: dev {self._metric} has not improved for {count}; "
                f"best epoch {event.best_epoch}"
            )

    def _begin(self, stage: str, total: int) -> TaskID:
        """Replace the bar if this is a new stage."""
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage, self._since = stage, time.perf_counter()
            self._task = self._progress.add_task(stage, total=total, detail="")
        return self._task

    def _print(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def training_progress(metric: str, shown: bool = True) -> Iterator[TrainingProgress]:
    """A progress bar on standard error; `shown` is for the main rank only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
    console = Console(stderr=True, quiet=not shown)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        yield TrainingProgress(progress, metric)
