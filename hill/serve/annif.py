"""Annif's API, so that what talks to Annif, such as its own http backend, can talk to this server."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from hill.decode import Decoder
from hill.serve.answers import best_labels
from hill.serve.bodies import Name
from hill.serve.desk import Desk, TheDesk
from hill.serve.problems import COMPUTING, PROBLEMS
from hill.serve.shelf import Served
from hill.serve.worker import Scores
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import as_dense

router = APIRouter(prefix="/v1/projects", responses=PROBLEMS, tags=["annif"])
UNKNOWN = "und"
"""The language of a model that was not told one."""

Limit = Annotated[int, Field(ge=0, le=1000, description="Most results.")]
Threshold = Annotated[float, Field(ge=0, le=1, description="Least score.")]


class Suggestion(BaseModel):
    """A suggested label."""

    uri: str
    label: str
    notation: str | None
    score: float


class Suggestions(BaseModel):
    """The labels suggested for a text."""

    results: list[Suggestion]


class DocumentSuggestions(Suggestions):
    """The labels suggested for a document of several."""

    document_id: str | None


class Document(BaseModel):
    """A document of several."""

    model_config = ConfigDict(strict=True)
    text: Name
    document_id: Name | None = None


class Documents(BaseModel):
    """Several documents."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"documents": [{"text": "A galaxy survey.", "document_id": "1"}]}]}
    )
    documents: list[Document]


class Project(BaseModel):
    """A model as Annif describes it."""

    project_id: str
    name: str
    language: str
    backend: dict[str, str]
    vocab: dict[str, Any]
    vocab_language: str
    is_trained: bool
    modification_time: str


class Projects(BaseModel):
    """All models as Annif describes them."""

    projects: list[Project]


@router.get("")
async def list_projects(desk: TheDesk) -> Projects:
    """The served models."""
    return Projects(projects=[_project(served) for served in desk.shelf.models.values()])


@router.get("/{project_id}")
async def show_project(project_id: str, desk: TheDesk) -> Project:
    """A served model."""
    return _project(desk.find(project_id))


@router.post("/{project_id}/suggest", response_model=Suggestions, responses=COMPUTING)
async def suggest(
    project_id: str,
    request: Request,
    desk: TheDesk,
    text: Annotated[Name, Form(min_length=1, examples=["A galaxy survey."])],
    limit: Annotated[Limit, Form()] = 10,
    threshold: Annotated[Threshold, Form()] = 0.0,
) -> JSONResponse:
    """Suggest labels for a text, those with the highest scores first."""
    (results,) = await _suggest(desk, request, desk.find(project_id), [text], limit, threshold)
    return JSONResponse({"results": results})


@router.post("/{project_id}/suggest-batch", response_model=list[DocumentSuggestions], responses=COMPUTING)
async def suggest_batch(
    project_id: str,
    asked: Documents,
    request: Request,
    desk: TheDesk,
    limit: Annotated[Limit, Query()] = 10,
    threshold: Annotated[Threshold, Query()] = 0.0,
) -> JSONResponse:
    """Suggest labels for several documents."""
    texts = [document.text for document in asked.documents]
    found = await _suggest(desk, request, desk.find(project_id), texts, limit, threshold)
    ids = [document.document_id for document in asked.documents]
    return JSONResponse([{"document_id": id, "results": each} for id, each in zip(ids, found, strict=True)])


async def _suggest(
    desk: Desk, request: Request, served: Served, texts: list[str], limit: int, threshold: float
) -> list[list[dict[str, Any]]]:
    """The results of each text; of one without words none, as Annif has it."""
    places = [place for place, text in enumerate(texts) if text.strip()]
    found: list[list[dict[str, Any]]] = [[] for _ in texts]
    if places:
        then = partial(_results, served.predictor.taxonomy, served.decoder(), limit, threshold)
        answered = await desk.ask(request, served, [texts[place] for place in places], then)
        for place, results in zip(places, answered, strict=True):
            found[place] = results
    return found


def _results(
    taxonomy: Taxonomy, decoder: Decoder, limit: int, threshold: float, scores: Scores
) -> list[list[dict[str, Any]]]:
    return [
        [
            {"uri": label["id"], "label": label["name"], "notation": None, "score": label["score"]}
            for label in best_labels(taxonomy, effective, limit)
            if label["score"] >= threshold and label["score"] > 0
        ]
        for effective in as_dense(decoder.effective(scores))
    ]


def _project(served: Served) -> Project:
    return Project(
        project_id=served.name,
        name=served.name,
        language=UNKNOWN,
        backend={"backend_id": "hill"},
        vocab={
            "vocab_id": served.name,
            "languages": [UNKNOWN],
            "size": len(served.predictor.taxonomy),
            "loaded": True,
        },
        vocab_language=UNKNOWN,
        is_trained=True,
        modification_time=datetime.fromtimestamp(served.changed, UTC).isoformat(timespec="seconds"),
    )
