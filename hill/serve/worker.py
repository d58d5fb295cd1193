"""The worker: one thread that owns the models and computes the texts of several requests together."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hill.predictor import Predictor
from hill.serve.config import ServeConfig
from hill.taxonomy.cells import Table, join_tables

Scores = Table
SMOOTH = 0.2
"""Weight of the last batch in the pace."""


class Full(Exception):
    """As many texts wait as may; says after how many seconds it may be worth to come again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Closed(Exception):
    """The worker takes nothing more on."""


@dataclass(eq=False)
class Job:
    """Texts of one request for one model, and what is made of their scores (texts, L), in the worker's thread."""

    model: Predictor
    texts: list[str]
    then: Callable[[Scores], Any]
    done: Future[Any] = field(default_factory=Future)
    came: float = field(default_factory=time.monotonic)


class Worker:
    """Takes jobs until it is closed, and then finishes those it took.

    Args:
        config: size of a batch, how long to wait for it, and how many texts may wait.
        observe: told how many texts each batch has.
    """

    def __init__(self, config: ServeConfig, observe: Callable[[int], None] = lambda texts: None) -> None:
        self._config, self._observe = config, observe
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._pace = 0.0
        self.waiting = 0
        """Texts that wait."""
        self._thread = threading.Thread(target=self._work, name="hill-worker", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether jobs are taken and done."""
        return self._thread.is_alive() and not self._closed

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Take no more, finish what was taken, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> Future[Any]:
        """Let a job wait for its turn; cancelled while it waits, it is never begun."""
        with self._changed:
            if self._closed:
                raise Closed
            if self.waiting + len(job.texts) > self._config.queue:
                raise Full(max(1, round(self.waiting * self._pace)))
            self._jobs.append(job)
            self.waiting += len(job.texts)
            self._changed.notify()
        return job.done

    def _work(self) -> None:
        while batch := self._take():
            start = time.monotonic()
            if begun := [job for job in batch if job.done.set_running_or_notify_cancel()]:
                _compute(begun)
                texts = sum(len(job.texts) for job in begun)
                self._observe(texts)
                self._pace += (SMOOTH if self._pace else 1) * ((time.monotonic() - start) / texts - self._pace)

    def _take(self) -> list[Job]:
        """The next batch, when it is large enough or its first job waited long enough; none when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            patience = self._jobs[0].came + self._config.wait_ms / 1000 - time.monotonic()
            self._changed.wait_for(lambda: self.waiting >= self._config.batch or self._closed, patience)
            return self._pick()

    def _pick(self) -> list[Job]:
        """The first job, and those for the same model that fit into a batch with it; the others keep their order."""
        batch: list[Job] = []
        left: deque[Job] = deque()
        texts = 0
        for job in self._jobs:
            fits = texts + len(job.texts) <= self._config.batch and job.model is self._jobs[0].model
            if not batch or fits:
                batch.append(job)
                texts += len(job.texts)
            else:
                left.append(job)
        self._jobs, self.waiting = left, self.waiting - texts
        return batch


def _compute(batch: list[Job]) -> None:
    """Score all texts together; where that fails, each job alone, so that no request fails because of another."""
    try:
        found = _score(batch[0].model, [text for job in batch for text in job.texts])
    except Exception as error:
        if len(batch) == 1:
            batch[0].done.set_exception(error)
        else:
            for job in batch:
                _compute([job])
        return
    start = 0
    for job in batch:
        _finish(job, found[start : start + len(job.texts)])
        start += len(job.texts)


def _finish(job: Job, scores: Scores) -> None:
    try:
        job.done.set_result(job.then(scores))
    except Exception as error:
        job.done.set_exception(error)


def _score(model: Predictor, texts: list[str]) -> Scores:
    """The model's own scores (texts, L)."""
    return join_tables(model.scores(texts), (len(texts), len(model.taxonomy)))
