"""Prediction on this machine: a file of texts in, a file of labels out, in the same order."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hill.data.files import find_splits
from hill.data.records import read_fields
from hill.disk import cannot_write, sync
from hill.errors import DataError
from hill.predictor import Predictor
from hill.types import Prediction

CHUNK = 4_096


def predict_file(
    predictor: Predictor, source: Path, target: Path, tick: Callable[[int], None] = lambda documents: None
) -> int:
    """Predict every record of a JSONL, CSV or Parquet file; returns how many.

    The target is JSONL with `id`, `labels`, `scores` and `paths`, whole or not at all.
    """
    files = [file for split in find_splits(source).values() for file in split]
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    records, count = read_fields(files), 0
    try:
        with draft.open("w", encoding="utf-8") as out:
            while chunk := list(islice(records, CHUNK)):
                for record, prediction in zip(chunk, _predict(predictor, chunk), strict=True):
                    out.write(json.dumps(_line(record, prediction), ensure_ascii=False) + "\n")
                count += len(chunk)
                tick(len(chunk))
        sync(draft)
        draft.replace(target)
        sync(target.parent)
    except OSError as error:
        raise DataError(cannot_write(target, error)) from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def _predict(predictor: Predictor, chunk: list[tuple[str, str]]) -> Iterator[Prediction]:
    yield from predictor.predictions([text for _, text in chunk])


def _line(record: tuple[str, str], prediction: Prediction) -> dict[str, Any]:
    return {"id": record[0], **prediction_document(prediction)}


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """A prediction as plain values."""
    return {
        "labels": list(prediction.labels),
        "scores": [round(score, 6) for score in prediction.scores],
        "paths": [list(path) for path in prediction.paths],
    }
