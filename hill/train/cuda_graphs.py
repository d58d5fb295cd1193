"""Training steps as CUDA graphs, for GPUs that would otherwise wait for the next kernel launch."""

from collections import Counter
from typing import Any

import torch

from hill.train.session import PackedSteps, Session, Split, StepResult, loss_of
from hill.types import IntArray


class GraphedSteps(PackedSteps):
    """Replays each step of a known batch size as one CUDA graph: forward, backward, clipping and optimiser.

    The first step of a size runs kernel by kernel, the second is recorded, later ones are replayed. All graphs share
    one memory pool: only the weights, the optimiser and the losses outlive a step.
    """

    def __init__(self, session: Session, data: Split) -> None:
        super().__init__(session, data)
        self._seen: Counter[int] = Counter()
        self._graphs: dict[int, tuple[Any, StepResult]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._documents = torch.zeros(session.config.batch_size, dtype=torch.int64, device=session.device)

    def step(self, group: list[IntArray]) -> StepResult:
        """Take one step on this batch."""
        (documents,) = group
        size = self.resident.size(documents)
        if len(documents) < len(self._documents) or not self._seen[size]:
            self._seen[size] += len(documents) == len(self._documents)
            return self._step_without_graph(group)
        self._documents.copy_(self.to_device(documents), non_blocking=True)
        if size not in self._graphs:
            self._graphs[size] = self._record(size)
        graph, result = self._graphs[size]
        graph.replay()
        parts = {name: part.clone() for name, part in result.parts.items()}
        return StepResult(result.loss.clone(), parts, result.nonfinite.clone())

    def _step_without_graph(self, group: list[IntArray]) -> StepResult:
        """Take a step kernel by kernel, on the stream on which graphs are recorded."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = super().step(group)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _record(self, size: int) -> tuple[Any, StepResult]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            buffers = self.copy_buffers()
            output = self.backward(self.resident.packed(self._documents, size), 1)
            loss = loss_of(output).detach()
            nonfinite = self.update(loss, buffers)
        return graph, StepResult(loss, {name: part.detach() for name, part in output.parts.items()}, nonfinite)
