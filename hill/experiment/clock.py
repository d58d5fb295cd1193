"""How long the epochs of a training took, evaluation not counted, also when it was stopped and resumed."""

import json
import time
from pathlib import Path

from hill.train import Epoch, Step
from hill.train.run import Report


class Clock:
    """Follows a training's reports and appends a line an epoch to a file beside its checkpoints.

    Time runs from the end of what comes before an epoch, such as tokenising or scoring dev, to its last step. That step
    is waited for: a GPU lags behind its reports. An epoch that a resumed training saw only a part of has no time.
    """

    def __init__(self, file: Path, epochs: int) -> None:
        self._file = file
        self._epochs = epochs
        self._begun = self._written = time.perf_counter()
        self._whole = False
        self._seconds: float | None = None

    def hear(self, report: Report) -> bool:
        """Take notice of a report, at once when it comes; returns whether it is of an epoch's last step."""
        if isinstance(report, Step):
            steps = report.steps // self._epochs
            place = (report.step - 1) % steps + 1
            self._whole |= place == 1
            if place == steps:
                report.loss.item()
                self._seconds = time.perf_counter() - self._begun if self._whole else None
            return place == steps
        if isinstance(report, Epoch):
            self._write(report.epoch)
        self._begun, self._whole = time.perf_counter(), False
        return False

    def _write(self, epoch: int) -> None:
        now = time.perf_counter()
        line = {"epoch": epoch, "seconds": self._seconds, "wall": now - self._written}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._written, self._seconds = now, None

    def document(self) -> dict[str, float | list[float] | None]:
        """Seconds of each epoch whose time is known, their mean, and all seconds with evaluation and preparation."""
        written = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        lines = [json.loads(line) for line in written]
        last = {line["epoch"]: line["seconds"] for line in lines}
        known = [round(seconds, 4) for seconds in last.values() if seconds is not None]
        mean = sum(known) / len(known) if known else None
        return {"epochs": known, "epoch": mean, "training": round(sum(line["wall"] for line in lines), 4)}
