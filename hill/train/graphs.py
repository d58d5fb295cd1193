"""Steps as CUDA graphs, for GPUs that would otherwise wait for their next kernel."""

from collections import Counter
from typing import Any

import torch

from hill.train.session import Session, Split
from hill.train.steps import PackedSteps, Taken, loss_of
from hill.types import IntArray


class GraphedSteps(PackedSteps):
    """Each step of a shape that comes again is one CUDA graph: forward, backward, clipping and optimiser.

    The first step of a shape is taken kernel by kernel, the second is recorded, later ones are replayed. All recordings
    share their memory: of each only the weights, the optimiser and the losses outlive a step.
    """

    def __init__(self, session: Session, data: Split) -> None:
        super().__init__(session, data)
        self._seen: Counter[int] = Counter()
        self._graphs: dict[int, tuple[Any, Taken]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._documents = torch.zeros(session.config.batch_size, dtype=torch.int64, device=session.device)

    def begin(self, stage: str) -> None:
        """Take the steps of this stage from here on, with new recordings: it has other losses and other gradients."""
        if stage != self.session.model.stage:
            torch.cuda.synchronize()  # the last replay may be under way
            self._graphs.clear()
            self._seen.clear()
            self._pool = torch.cuda.graph_pool_handle()
        super().begin(stage)

    def take(self, group: list[IntArray]) -> Taken:
        """One step on this batch."""
        (documents,) = group
        size = self.resident.size(documents)
        if len(documents) < len(self._documents) or not self._seen[size]:
            self._seen[size] += len(documents) == len(self._documents)
            return self._take_aside(group)
        self._documents.copy_(self.move(documents), non_blocking=True)
        if size not in self._graphs:
            self._graphs[size] = self._record(size)
        graph, taken = self._graphs[size]
        graph.replay()
        return Taken(taken.loss.clone(), {name: part.clone() for name, part in taken.parts.items()}, taken.bad.clone())

    def _take_aside(self, group: list[IntArray]) -> Taken:
        """A step outside of a graph, on the stream that graphs are recorded on."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            taken = super().take(group)
        torch.cuda.current_stream().wait_stream(self._stream)
        return taken

    def _record(self, size: int) -> tuple[Any, Taken]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            before = self.moving()
            output = self.backward(self.resident.packed(self._documents, size), 1)
            loss = loss_of(output).detach()
            bad = self.update(loss, before)
        return graph, Taken(loss, {name: part.detach() for name, part in output.parts.items()}, bad)
