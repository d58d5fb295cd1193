"""Counters for Prometheus; each server has its own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
METHODS = ("GET", "HEAD", "OPTIONS", "POST")


class Meter:
    """Requests, their time, texts, batches and the queue."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter("hill_requests", "Requests.", ("method", "route", "status"), registry=self._registry)
        self.seconds = Histogram(
            "hill_request_seconds", "Seconds a request took.", ("route",), registry=self._registry, buckets=SECONDS
        )
        self.texts = Counter("hill_texts", "Texts answered.", ("model",), registry=self._registry)
        self.batches = Histogram("hill_batch_texts", "Texts of a batch.", registry=self._registry, buckets=SIZES)

    def watch(self, waiting: Callable[[], float]) -> None:
        """Show how many texts wait, whenever that is asked."""
        Gauge("hill_queue_texts", "Texts waiting.", registry=self._registry).set_function(waiting)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered. Whatever a client makes up counts as other, so that it cannot fill the memory."""
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
