"""The progress bar of a training: loss, learning rate and remaining time, and one line per epoch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hill.errors import counted
from hill.train.trainer import Epoch, Finished, Notice, Resumed, StageProgress, Started, Step, TrainingEvent

READ_STEPS = 5
"""Steps between two updates of the loss, if they are fast: reading it waits for the device."""
READ_SECONDS = 1.0
"""If steps are slow, the loss is updated after this time."""
ESTIMATE_SECONDS, ESTIMATE_STEPS = 5.0, 3
"""Time and steps after which the time that all steps take is printed."""


class TrainingProgress:
    """Shows the events of a training."""

    def __init__(self, progress: Progress, metric: str) -> None:
        self._progress = progress
        self._metric = metric
        self._task: TaskID | None = None
        self._stage = ""
        self._since = self._read = time.perf_counter()
        self._first_step: int | None = None
        self._documents = 0
        self._estimated = False
        self._start = self._since
        self._limit = float("inf")

    def show(self, event: TrainingEvent) -> None:
        """Show one event."""
        if isinstance(event, StageProgress):
            self._progress.update(self._begin(event.stage, event.total), completed=event.done)
        elif isinstance(event, Notice):
            self._print(event.text)
            if isinstance(event, Started):
                self._limit = 60 * event.settings["train"]["minutes"] or self._limit
        elif isinstance(event, Resumed):
            if event.damaged:
                self._print(f"{event.damaged}; an earlier checkpoint is used")
            self._print(f"resumed after step {event.step:,}")
        elif isinstance(event, Step):
            task = self._begin("training", event.steps)
            self._progress.update(task, completed=event.step)
            now = time.perf_counter()
            if event.step % READ_STEPS == 0 or event.step == event.steps or now - self._read > READ_SECONDS:
                detail, self._read = f"loss {event.loss.item():.4f}  learning rate {event.rate:.1e}", now
                self._progress.update(task, detail=detail)
            self._estimate(event)
        elif isinstance(event, Epoch):
            names = dict.fromkeys([self._metric, "micro_f1", "macro_f1"])
            values = "  ".join(f"{name} {event.metrics[name]:.4f}" for name in names if name in event.metrics)
            mark = "  best so far" if event.improved else ""
            skipped = f"  {event.metrics['skipped']:,} steps skipped" if event.metrics.get("skipped") else ""
            if values or skipped:
                self._print(f"epoch {event.epoch}: dev {values}{skipped}{mark}")
        elif isinstance(event, Finished):
            self._print(
                f"{self._reason(event)}; {self._best(event)}" if event.best is not None else self._reason(event)
            )

    def _estimate(self, event: Step) -> None:
        """Print once, after the first steps, how long the others take. The first step is not timed: it is slower."""
        if self._first_step is None:
            self._first_step, self._since = event.step, time.perf_counter()
            return
        self._documents += event.documents
        seconds, done, left = time.perf_counter() - self._since, event.step - self._first_step, event.steps - event.step
        if not self._estimated and seconds >= ESTIMATE_SECONDS and done >= ESTIMATE_STEPS:
            self._estimated = True
            if (time_left := seconds / done * left) > ESTIMATE_SECONDS:
                speed = f"{self._documents / seconds:,.0f} documents per second"
                end = "scoring dev is extra"
                if time_left > (most := self._limit - (time.perf_counter() - self._start)):
                    end = f"but the time limit ends training in {duration(most)} or less"
                self._print(f"about {duration(time_left)} for {left:,} more steps, at {speed}; {end}")

    def _reason(self, event: Finished) -> str:
        """Why training stopped."""
        if event.reason == "steps":
            return f"trained {event.steps:,} of {event.steps:,} steps"
        if event.reason == "time":
            return f"stopped after step {event.step:,} of {event.steps:,}: the time limit is reached"
        count = counted(event.epoch - event.best_epoch, "epoch")
        return f"stopped after epoch {event.epoch}: dev {self._metric} has not improved for {count}"

    def _best(self, event: Finished) -> str:
        return f"best epoch {event.best_epoch} of {event.epoch}, with dev {self._metric} {event.best:.4f}"

    def _begin(self, stage: str, total: int) -> TaskID:
        """Replace the bar if this is a new stage."""
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage = stage
            self._task = self._progress.add_task(stage, total=total, detail="")
        return self._task

    def _print(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in words, rounded.

    >>> [duration(seconds) for seconds in (0.4, 40, 100, 3_000, 9_000)]
    ['1 second', '40 seconds', '2 minutes', '50 minutes', '2.5 hours']
    """
    for unit, size, most in (("second", 1, 90), ("minute", 60, 5_400)):
        if seconds < most:
            return counted(max(round(seconds / size), 1), unit)
    return f"{seconds / 3_600:.1f} hours"


@contextmanager
def training_progress(metric: str, shown: bool = True) -> Iterator[TrainingProgress]:
    """A progress bar on standard error; `shown` is for the main rank only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
    console = Console(stderr=True, quiet=not shown)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        yield TrainingProgress(progress, metric)
