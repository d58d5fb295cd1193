"""The routes of the REST API under /v1: predictions, models and labels."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from hill.decode import Decoder
from hill.predictor import Predictor, ScoredBatch
from hill.serve.config import ServeConfig
from hill.serve.errors import ERRORS, PREDICT_ERRORS
from hill.serve.middleware import ServerMetrics
from hill.serve.registry import ModelRegistry, ServedModel
from hill.serve.schemas import (
    MAX_EXPLAINED,
    LabelDetails,
    LabelList,
    ModelDetails,
    ModelSummary,
    PredictRequest,
    PredictResponse,
)
from hill.serve.worker import Job, QueueFull, Worker, WorkerClosed
from hill.sparse import Matrix, to_dense
from hill.taxonomy import Taxonomy
from hill.types import IntArray, Prediction

DIGITS = 6
"""Decimal places of scores."""

ScoreRow = npt.NDArray[np.floating]

# The dependency of the routes


@dataclass(frozen=True)
class ServerState:
    """What the routes need: models, worker, settings and metrics."""

    registry: ModelRegistry
    worker: Worker
    config: ServeConfig
    metrics: ServerMetrics

    def find_model(self, name: str | None) -> ServedModel:
        """The model with this name, or the default model; raises 404 if there is none."""
        if name is None:
            return self.registry.default
        if name not in self.registry.models:
            names = ", ".join(self.registry.models)
            raise HTTPException(404, f"there is no model '{name}'; expected one of: {names}")
        return self.registry.models[name]

    async def run_job(
        self, request: Request, served: ServedModel, texts: list[str], finish: Callable[[Matrix], Any]
    ) -> Any:
        """Score texts in the worker and return what `finish` makes of the scores."""
        if len(texts) > self.config.max_texts:
            raise HTTPException(422, f"there are {len(texts)} texts; expected at most {self.config.max_texts}")
        request.state.texts = len(texts)  # for the log
        job = Job(served.predictor, texts, finish)
        try:
            result = await asyncio.wait_for(asyncio.wrap_future(self.worker.submit(job)), self.config.timeout)
        except QueueFull as error:
            retry = {"Retry-After": str(error.retry_after)}
            raise HTTPException(503, "too many texts are waiting; try again later", retry) from None
        except WorkerClosed:
            raise HTTPException(503, "the server is shutting down", {"Retry-After": "5"}) from None
        except TimeoutError:
            raise HTTPException(
                504, f"the prediction took longer than {self.config.timeout:g} s; send fewer texts"
            ) from None
        self.metrics.texts.labels(served.name).inc(len(texts))
        return result


async def _server_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


Server = Annotated[ServerState, Depends(_server_state)]
ModelName = Annotated[str | None, Query(description="Name of a served model. Default: the first one.")]

# Routes

router = APIRouter(prefix="/v1", responses=ERRORS)


@router.post("/predict", response_model=PredictResponse, responses=PREDICT_ERRORS, tags=["predict"])
async def predict(body: PredictRequest, request: Request, server: Server) -> JSONResponse:
    """Predict the labels of texts. Concurrent requests share batches."""
    served = server.find_model(body.model)
    if body.explain not in (None, False) and served.explain is None:
        raise HTTPException(409, f"the model '{served.name}' is exported and has no gradients, which explaining needs")
    for label in body.explain if isinstance(body.explain, list) else []:
        _check_label(served, label)
    decoder = served.decoder(body.strategy, body.threshold)
    finish = partial(_make_predictions, served, decoder, body)
    return JSONResponse(
        {
            "model": served.name,
            "strategy": decoder.config.strategy,
            "threshold": decoder.config.threshold,
            "predictions": await server.run_job(request, served, body.all_texts, finish),
        }
    )


@router.get("/models", tags=["models"])
async def list_models(server: Server) -> list[ModelSummary]:
    """List the served models."""
    default = server.registry.default
    return [ModelSummary(**served.summary(served is default)) for served in server.registry.models.values()]


@router.get("/model", response_model=ModelDetails, tags=["models"])
async def show_model(server: Server, model: ModelName = None) -> JSONResponse:
    """Show the settings and metrics of a model."""
    served = server.find_model(model)
    return JSONResponse(served.to_dict(served is server.registry.default))


@router.get("/taxonomy", response_model=LabelList, tags=["labels"])
async def list_labels(
    server: Server,
    model: ModelName = None,
    parent: Annotated[str | None, Query(description="Id of a label: list its children. Default: the roots.")] = None,
    search: Annotated[str | None, Query(description="List labels with these words in id or name, best first.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="Default: 200, or 50 for a search.")] = None,
) -> JSONResponse:
    """List the roots, the children of a label, or the labels that match a search."""
    served = server.find_model(model)
    rows: Any
    if search and search.strip():
        parent, rows, limit = None, served.labels.search(search), limit or 50
    else:
        if parent is not None:
            _check_label(served, parent)
        rows, limit = served.labels.children(parent), limit or 200
    labels = [served.labels.summary(int(row)) for row in rows[offset : offset + limit]]
    return JSONResponse({"parent": parent, "total": len(rows), "labels": labels})


@router.get("/labels/{id:path}", response_model=LabelDetails, tags=["labels"])
async def show_label(id: str, server: Server, model: ModelName = None) -> JSONResponse:
    """Show a label with its paths from the roots."""
    served = server.find_model(model)
    _check_label(served, id)
    return JSONResponse(served.labels.to_dict(id))


def _check_label(served: ServedModel, label: str) -> None:
    if label not in served.predictor.taxonomy:
        raise HTTPException(404, f"there is no label '{label}'; expected the id of a label")


# From scores to responses; this runs in the worker thread


class _ScoredTexts(Predictor):
    """Predicts from given scores with a given decoder."""

    def __init__(self, taxonomy: Taxonomy, decoder: Decoder, scores: Matrix) -> None:
        self.taxonomy, self._decoder, self._scores = taxonomy, decoder, scores

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        yield np.arange(self._scores.shape[0]), self._scores

    def decoder(self) -> Decoder:
        return self._decoder


def _make_predictions(
    served: ServedModel, decoder: Decoder, body: PredictRequest, scores: Matrix
) -> list[dict[str, Any]]:
    """The fields of `TextPrediction` per text."""
    taxonomy = served.predictor.taxonomy
    predictions = _ScoredTexts(taxonomy, decoder, scores).predictions(body.all_texts)
    results: list[dict[str, Any]] = []
    for prediction in predictions:
        rows = [taxonomy.row(label) for label in prediction.labels]
        labels = [
            {**_scored_label(taxonomy, row, score), "level": int(taxonomy.depth[row])}
            for row, score in zip(rows, prediction.scores, strict=True)
        ]
        results.append({"labels": labels, "paths": [list(path) for path in prediction.paths]})
    if body.top_k or body.explain:
        effective = to_dense(decoder.effective(scores))
    if body.top_k:
        for result, row_scores in zip(results, effective, strict=True):
            result["scores"] = top_labels(taxonomy, row_scores, body.top_k)
    if body.explain:
        labels_to_explain = body.explain if isinstance(body.explain, list) else None
        results[0]["explanation"] = _make_explanation(
            served, body.all_texts[0], labels_to_explain, predictions[0], effective[0]
        )
    return results


def _make_explanation(
    served: ServedModel, text: str, labels: list[str] | None, prediction: Prediction, scores: ScoreRow
) -> dict[str, Any]:
    """Explain these labels, else the most specific predicted labels, else the label with the highest score."""
    assert served.explain is not None
    taxonomy = served.predictor.taxonomy
    if labels is None:
        ranked = sorted(
            zip(prediction.labels, prediction.scores, strict=True),
            key=lambda pair: (-taxonomy.depth[taxonomy.row(pair[0])], -pair[1]),
        )
        labels = [label for label, _ in ranked[:MAX_EXPLAINED]]
    labels = labels or taxonomy.decode(top_rows(taxonomy, scores, 1))
    result: dict[str, Any] = served.explain(served.predictor, text, labels).to_dict()
    for label in result["labels"]:
        label["predicted"] = label["id"] in prediction.labels
        label["score"] = round(float(scores[taxonomy.row(label["id"])]), DIGITS)
    return result


def top_labels(taxonomy: Taxonomy, scores: ScoreRow, count: int) -> list[dict[str, Any]]:
    """The labels with the highest scores (L), as fields of `ScoredLabel`."""
    return [_scored_label(taxonomy, row, scores[row]) for row in top_rows(taxonomy, scores, count).tolist()]


def top_rows(taxonomy: Taxonomy, scores: ScoreRow, count: int) -> IntArray:
    """The rows with the highest scores (L); of equal scores the more specific label comes first."""
    rows = np.arange(len(scores))
    if count < len(rows):
        rows = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return rows[np.lexsort((-taxonomy.depth[rows], -scores[rows]))][:count]


def _scored_label(taxonomy: Taxonomy, row: int, score: float) -> dict[str, Any]:
    label = taxonomy[row]
    return {"id": label.id, "name": label.name, "score": round(float(score), DIGITS)}
