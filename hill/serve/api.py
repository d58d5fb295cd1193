"""The REST API under /v1: its schemas, its routes, and how scores become responses.

FastAPI validates requests with the schemas and shows them in /openapi.json.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hill.decode import STRATEGIES, Decoder
from hill.predictor import Predictor, ScoredBatch
from hill.serve.config import ServeConfig
from hill.serve.middleware import ServerMetrics
from hill.serve.registry import ModelRegistry, ServedModel
from hill.serve.worker import Job, QueueFull, Worker, WorkerClosed
from hill.sparse import Matrix, to_dense
from hill.taxonomy import Taxonomy
from hill.types import IntArray, Prediction

# Schemas

MAX_EXPLAINED = 20
"""Maximum number of labels that one request explains; each takes about as long as predicting hundreds of texts."""
DIGITS = 6
"""Decimal places of scores."""

ScoreRow = npt.NDArray[np.floating]

Strategy = Literal["closure", "ancestors", "top-down", "path", "safe", "raw"]
assert set(get_args(Strategy)) == {*STRATEGIES} - {"auto"}


def check_unicode(text: str) -> str:
    """The text, if it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has a lone surrogate; expected valid Unicode text") from None
    return text


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; expected words")
    return check_unicode(text)


def _integral_to_int(value: Any) -> Any:
    """Accept 3.0 for 3, because some JSON libraries write integers as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, AfterValidator(_check_text), Field(json_schema_extra={"pattern": r"\S"})]
Name = Annotated[str, AfterValidator(check_unicode)]

_PREDICT_REQUEST_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"required": ["text"], "properties": {"text": {"type": "string"}, "texts": {"type": "null"}}},
        {
            "required": ["texts"],
            "properties": {"texts": {"type": "array"}, "text": {"type": "null"}},
            "anyOf": [
                {"properties": {"explain": {"enum": [False, None]}}},
                {"properties": {"texts": {"maxItems": 1}}},
            ],
        },
    ],
    "examples": [
        {"text": "A deep network that translates sentences."},
        {"texts": ["A deep network.", "A galaxy survey."], "strategy": "closure", "threshold": 0.4, "top_k": 5},
    ],
}
"""JSON schema of the rules that combine several fields of `PredictRequest`."""


class PredictRequest(BaseModel):
    """A request for predictions: one text, or several."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_PREDICT_REQUEST_SCHEMA)

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, description="Up to --max-texts texts.")] | None = None
    model: Name | None = Field(None, description="Name of a served model. Default: the first one.")
    strategy: Strategy | None = Field(None, description="How scores become label sets. Default: the model's strategy.")
    threshold: float | None = Field(
        None, ge=0, le=1, description="One threshold for all labels. Default: the model's thresholds."
    )
    top_k: Annotated[int | None, BeforeValidator(_integral_to_int)] = Field(
        None, ge=1, le=1000, description="Also return the labels with the highest scores, this many."
    )
    explain: bool | Annotated[list[Name], Field(max_length=MAX_EXPLAINED)] | None = Field(
        None,
        description="Also return which words raise or lower the scores of the predicted labels (true), or of the "
        "labels with these ids. For one text only.",
    )

    @model_validator(mode="after")
    def _check_combination(self) -> "PredictRequest":
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if self.explain not in (None, False) and len(self.all_texts) > 1:
            raise ValueError(f"explain is for one text; there are {len(self.all_texts)}")
        return self

    @property
    def all_texts(self) -> list[str]:
        """The texts as a list, also if there is only one."""
        return self.texts or [self.text or ""]


class ScoredLabel(BaseModel):
    """A label and its score."""

    id: str
    name: str
    score: float


class PredictedLabel(ScoredLabel):
    """A predicted label. Roots have level 1."""

    level: int


class TextPrediction(BaseModel):
    """The prediction for one text."""

    labels: list[PredictedLabel]
    paths: list[list[str]]
    scores: list[ScoredLabel] = Field(default=[], description="With top_k.")
    explanation: dict[str, Any] = Field(default={}, description="With explain.")


class PredictResponse(BaseModel):
    """The predictions of a request."""

    model: str
    strategy: str
    threshold: float
    predictions: list[TextPrediction]


class ModelSummary(BaseModel):
    """A model in the list of models."""

    name: str
    labels: int
    levels: int
    default: bool


class ModelDetails(ModelSummary):
    """A model with its settings and metrics."""

    model: str = Field(examples=["hill"])
    encoder: str | None = Field(examples=["minilm"])
    strategies: list[str]
    strategy: str
    threshold: float
    thresholds_differ: bool = Field(description="Whether labels have different thresholds.")
    metrics: dict[str, Any]
    max_length: int
    explains: bool


class LabelSummary(BaseModel):
    """A label of the taxonomy."""

    id: str
    name: str
    description: str
    level: int
    children: int
    parents: list[str]


class LabelDetails(LabelSummary):
    """A label with its paths from the roots."""

    paths: list[list[str]]


class LabelList(BaseModel):
    """One page of the children of a label, or of search results."""

    parent: str | None
    total: int
    labels: list[LabelSummary]


class ErrorResponse(BaseModel):
    """Why a request failed."""

    detail: str = Field(examples=["give either text or texts"])


def error_responses(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Descriptions of error responses, for the OpenAPI description."""
    return {status: {"model": ErrorResponse, "description": text} for status, text in descriptions.items()}


ERRORS = error_responses(
    {
        401: "The API key is missing or wrong.",
        404: "The model or label does not exist.",
        421: "The Host header is not a name of this server.",
        422: "A field is invalid.",
    }
)
"""Error responses of every route, for the OpenAPI description."""
PREDICT_ERRORS = error_responses(
    {
        400: "The body cannot be read.",
        409: "The model does not support this.",
        413: "The body is too large.",
        422: "A field is invalid, or there are too many texts.",
        503: "Too many texts are waiting; see Retry-After.",
        504: "The prediction took too long.",
    }
)
"""Further error responses of routes that predict."""

# State


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
            detail = f"the prediction took longer than {self.config.timeout:g} s; send fewer texts"
            raise HTTPException(504, detail) from None
        self.metrics.texts.labels(served.name).inc(len(texts))
        return result


async def _server_state(request: Request) -> Any:
    return request.app.state.server


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
        _label_row(served, label)
    decoder = served.decoder(body.strategy, body.threshold)
    finish = partial(make_predictions, served, decoder, body)
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
    taxonomy = served.predictor.taxonomy
    if search and search.strip():
        parent, rows, limit = None, served.labels.search(search), limit or 50
    elif parent is None:
        rows = taxonomy.roots.tolist()
    else:
        rows = taxonomy.children(_label_row(served, parent)).tolist()
    limit = limit or 200
    labels = [served.labels.summary(row) for row in rows[offset : offset + limit]]
    return JSONResponse({"parent": parent, "total": len(rows), "labels": labels})


@router.get("/labels/{id:path}", response_model=LabelDetails, tags=["labels"])
async def show_label(id: str, server: Server, model: ModelName = None) -> JSONResponse:
    """Show a label with its paths from the roots."""
    served = server.find_model(model)
    return JSONResponse(served.labels.to_dict(_label_row(served, id)))


def _label_row(served: ServedModel, label: str) -> int:
    if label not in served.predictor.taxonomy:
        raise HTTPException(404, f"there is no label '{label}'; expected the id of a label")
    return served.predictor.taxonomy.row(label)


# From scores to responses; this runs in the worker thread


class _ScoredTexts(Predictor):
    """Predicts from given scores with a given decoder."""

    def __init__(self, taxonomy: Taxonomy, decoder: Decoder, scores: Matrix) -> None:
        self.taxonomy, self._decoder, self._scores = taxonomy, decoder, scores

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        yield np.arange(self._scores.shape[0]), self._scores

    def decoder(self) -> Decoder:
        return self._decoder


def make_predictions(served: ServedModel, decoder: Decoder, body: PredictRequest, scores: Matrix) -> list[Any]:
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
        results[0]["explanation"] = _make_explanation(served, body, predictions[0], effective[0])
    return results


def _make_explanation(
    served: ServedModel, body: PredictRequest, prediction: Prediction, scores: ScoreRow
) -> dict[str, Any]:
    """Explain the requested labels, else the most specific predicted labels, else the label with the highest score."""
    assert served.explain is not None
    taxonomy = served.predictor.taxonomy
    labels = body.explain
    if not isinstance(labels, list):
        ranks = {
            label: (-taxonomy.depth[taxonomy.row(label)], -score)
            for label, score in zip(prediction.labels, prediction.scores, strict=True)
        }
        labels = sorted(ranks, key=ranks.__getitem__)[:MAX_EXPLAINED]
    labels = labels or taxonomy.decode(top_rows(taxonomy, scores, 1))
    result: dict[str, Any] = served.explain(served.predictor, body.all_texts[0], labels).to_dict()
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
