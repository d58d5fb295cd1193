"""What a training shows while it runs: a bar with loss, rate, speed and time left, and a line an epoch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hill.train import Epoch, Step
from hill.train.run import Fitted, Report, Resumed

READ_STEPS = 5


class TrainingBar:
    """Follows a training's reports."""

    def __init__(self, progress: Progress, metric: str) -> None:
        self._progress = progress
        self._metric = metric
        self._task: TaskID | None = None
        self._stage = ""
        self._since = time.perf_counter()
        self._documents = 0

    def show(self, report: Report) -> None:
        """Show one report."""
        if isinstance(report, Fitted):
            self._begin(report.stage, report.total)
            self._update(report.done, "")
        elif isinstance(report, Resumed):
            if report.damaged:
                self._say(f"{report.damaged}; an earlier checkpoint is used")
            self._say(f"resumed after step {report.step:,}")
        elif isinstance(report, Step):
            self._begin("training", report.steps)
            self._documents += report.documents
            if report.step % READ_STEPS == 0 or report.step == report.steps:
                speed = self._documents / max(time.perf_counter() - self._since, 1e-9)
                detail = f"loss {report.loss.item():.4f}  rate {report.rate:.1e}  {speed:,.0f} docs/s"
                self._update(report.step, detail)
        elif isinstance(report, Epoch):
            self._print_epoch(report)

    def _begin(self, stage: str, total: int) -> None:
        if stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage, self._since = stage, time.perf_counter()
            self._task = self._progress.add_task(stage, total=total, detail="")

    def _update(self, done: int, detail: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, completed=done, detail=detail)

    def _print_epoch(self, report: Epoch) -> None:
        names = dict.fromkeys([self._metric, "micro_f1", "macro_f1"])
        values = "  ".join(f"{name} {report.metrics[name]:.4f}" for name in names)
        mark = "  best so far" if report.improved else ""
        skipped = f"  {report.metrics['skipped']:,} steps skipped" if report.metrics.get("skipped") else ""
        self._say(f"epoch {report.epoch}: dev {values}{skipped}{mark}")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def training_bar(metric: str, shown: bool = True) -> Iterator[TrainingBar]:
    """A bar on standard error for as long as a training runs; of several ranks, the main one shows it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
    console = Console(stderr=True, quiet=not shown)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        yield TrainingBar(progress, metric)
