"""The desk: finds the model of a request, lets its texts be computed, and says what went wrong in HTTP's words."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from hill.serve.config import ServeConfig
from hill.serve.meter import Meter
from hill.serve.shelf import Served, Shelf
from hill.serve.worker import Closed, Full, Job, Scores, Worker


@dataclass(frozen=True)
class Desk:
    """What every request needs: the models, the worker, the settings and the counters."""

    shelf: Shelf
    worker: Worker
    config: ServeConfig
    meter: Meter

    def find(self, name: str | None) -> Served:
        """The model of this name."""
        if name is None:
            return self.shelf.default
        if name not in self.shelf.models:
            known = ", ".join(self.shelf.models)
            raise HTTPException(404, f"there is no model '{name}'; expected one of: {known}")
        return self.shelf.models[name]

    async def ask(self, request: Request, served: Served, texts: list[str], then: Callable[[Scores], Any]) -> Any:
        """What is made of the scores of these texts, when their turn has come."""
        if len(texts) > self.config.max_texts:
            raise HTTPException(422, f"there are {len(texts)} texts; expected at most {self.config.max_texts}")
        request.state.texts = len(texts)
        job = Job(served.predictor, texts, then)
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(self.worker.submit(job)), self.config.timeout)
        except Full as full:
            raise HTTPException(
                503, "too many texts are waiting; come again later", {"Retry-After": f"{full.seconds}"}
            ) from None
        except Closed:
            raise HTTPException(503, "the server is shutting down", {"Retry-After": "5"}) from None
        except TimeoutError:
            raise HTTPException(
                504, f"there was no answer within {self.config.timeout:g} s; send fewer texts"
            ) from None
        self.meter.texts.labels(served.name).inc(len(texts))
        return found


async def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


TheDesk = Annotated[Desk, Depends(_desk)]
