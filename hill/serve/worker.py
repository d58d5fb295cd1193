"""The worker thread: it owns the models and predicts the texts of several requests in one batch."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hill.predictor import Predictor
from hill.serve.config import ServeConfig
from hill.sparse import Matrix, assemble_rows

SMOOTHING = 0.2
"""Weight of the last batch in the moving average of the seconds per text."""


@dataclass(eq=False)
class QueueFull(Exception):
    """Too many texts are waiting; `retry_after` is the number of seconds after which to try again."""

    retry_after: int


class WorkerClosed(Exception):
    """The worker accepts no more jobs."""


@dataclass(eq=False)
class Job:
    """The texts of one request for one model."""

    model: Predictor
    texts: list[str]
    finish: Callable[[Matrix], Any]
    """Turns scores (texts, labels) into the result; runs in the worker thread."""
    future: Future[Any] = field(default_factory=Future)
    created: float = field(default_factory=time.monotonic)


class Worker(threading.Thread):
    """Runs jobs until it is closed; jobs that it has accepted by then are still run.

    It calls `on_batch` with the number of texts of each batch.
    """

    def __init__(self, config: ServeConfig, on_batch: Callable[[int], None] = lambda n_texts: None) -> None:
        super().__init__(name="hill-worker", daemon=True)
        self._config, self._on_batch = config, on_batch
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._closed, self._seconds_per_text = False, 0.0
        self.queue_size = 0
        """Number of waiting texts."""

    @property
    def ready(self) -> bool:
        """Whether jobs are accepted and run."""
        return self.is_alive() and not self._closed

    def close(self) -> None:
        """Accept no more jobs, run the accepted ones and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.join()

    def submit(self, job: Job) -> Future[Any]:
        """Add a job to the queue. If its future is cancelled while it waits, it is not run."""
        with self._changed:
            if self._closed:
                raise WorkerClosed
            if self.queue_size + len(job.texts) > self._config.queue:
                raise QueueFull(max(1, round(self.queue_size * self._seconds_per_text)))
            self._jobs.append(job)
            self.queue_size += len(job.texts)
            self._changed.notify()
        return job.future

    def run(self) -> None:
        """Predict batches until the worker is closed and the queue is empty; `start` runs this in the thread."""
        while batch := self._next_batch():
            start = time.monotonic()
            if jobs := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                _run_jobs(jobs)
                n_texts = sum(len(job.texts) for job in jobs)
                self._on_batch(n_texts)
                seconds = (time.monotonic() - start) / n_texts
                weight = SMOOTHING if self._seconds_per_text else 1
                self._seconds_per_text += weight * (seconds - self._seconds_per_text)

    def _next_batch(self) -> list[Job]:
        """Wait until a batch is full or its first job has waited long enough; empty if the worker is done.

        A batch is the first job and all others for the same model that fit; the rest keep their order.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            wait = self._jobs[0].created + self._config.wait_ms / 1000 - time.monotonic()
            self._changed.wait_for(lambda: self.queue_size >= self._config.batch or self._closed, wait)
            batch, rest, n_texts = [self._jobs[0]], [], len(self._jobs[0].texts)
            for job in self._jobs[1:]:
                if n_texts + len(job.texts) <= self._config.batch and job.model is batch[0].model:
                    batch.append(job)
                    n_texts += len(job.texts)
                else:
                    rest.append(job)
            self._jobs = rest
            self.queue_size -= n_texts
            return batch


def _run_jobs(jobs: list[Job]) -> None:
    """Score all texts in one batch; if that fails, run each job alone, so that only the bad request fails."""
    model, texts = jobs[0].model, [text for job in jobs for text in job.texts]
    try:
        scores = assemble_rows(model.scores(texts), (len(texts), len(model.taxonomy)))
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].future.set_exception(error)
        else:
            for job in jobs:
                _run_jobs([job])
        return
    start = 0
    for job in jobs:
        end = start + len(job.texts)
        try:
            job.future.set_result(job.finish(scores[start:end]))
        except Exception as error:
            job.future.set_exception(error)
        start = end
