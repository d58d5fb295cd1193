"""The engine of Ray Data: parts predicted by a pool of actors, on one machine or many that share their files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hill.engines.columns import Columns
from hill.engines.parts import Part
from hill.engines.processes import TRIES, Load
from hill.engines.write import Written, count_drafts, read_written, write_part
from hill.errors import HillError
from hill.extras import need

BLOCKS = 10_000
"""Most blocks the list of parts is cut into, each the work of one task."""


class Predict:
    """An actor: loads the model once, then writes one part after the other."""

    def __init__(self, load: Load, folder: Path) -> None:
        self._columns, self._folder = Columns(load()), folder

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Write parts, and tell what was written; an error of ours is told rather than raised, as Ray would retry."""
        try:
            return {"told": [self._write(Part.read(json.loads(part))) for part in batch["part"].tolist()]}
        except HillError as error:
            return {"told": [json.dumps({"error": str(error)})]}

    def _write(self, part: Part) -> str:
        target = self._folder / part.name
        if count_drafts(target) >= TRIES:  # Ray alone would try for ever
            raise HillError(
                f"{TRIES} actors died on '{part.source}', perhaps for want of memory; what is written stays"
            )
        written = read_written(target, part.name)  # there, where an actor died after writing it
        steps = [written] if written else write_part(self._columns, part, self._folder)
        return json.dumps(next(asdict(step) for step in steps if isinstance(step, Written)))


def run_ray(load: Load, parts: Sequence[Part], folder: Path, workers: int) -> Iterator[int | Written]:
    """Write these parts, yielding the rows of each and what was written of it."""
    ray = need("ray", "ray", "the engine ray")
    need("ray.data", "ray", "the engine ray")
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        for row in _dataset(ray, load, parts, folder, workers).iter_rows() if parts else ():
            told = json.loads(row["told"])
            if "error" in told:
                raise HillError(told["error"])
            yield told["rows"]
            yield Written(**told)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[-1][:300]
        raise HillError(f"Ray gave up: {reason}; what is written stays: run it again to go on") from None
    finally:
        if started:
            ray.shutdown()


def _dataset(ray: Any, load: Load, parts: Sequence[Part], folder: Path, workers: int) -> Any:
    """What was written of each part, computed while it is asked for."""
    found = ray.cluster_resources()
    gpus = int(found.get("GPU", 0))
    size = min(workers or gpus or int(found.get("CPU", 1)), len(parts))
    items = [{"part": json.dumps(part.document())} for part in parts]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    dataset = ray.data.from_items(items, override_num_blocks=min(len(items), BLOCKS))
    dataset.context.enable_progress_bars = False
    return dataset.map_batches(
        Predict,
        fn_constructor_args=(load, folder),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        num_gpus=1 if gpus else 0,
    )
