"""The routes of Annif's API, so that clients of Annif, such as its http backend, can use this server."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from hill.serve.api import ERRORS, PREDICT_ERRORS, Name, Server, ServerState, top_labels
from hill.serve.registry import ServedModel
from hill.sparse import Matrix, to_dense

UNKNOWN_LANGUAGE = "und"
"""The language code for "undetermined": models do not store a language."""

Limit = Annotated[int, Field(ge=0, le=1000, description="Maximum number of results.")]
Threshold = Annotated[float, Field(ge=0, le=1, description="Minimum score.")]


class Suggestion(BaseModel):
    """A suggested label."""

    uri: str
    label: str
    notation: str | None
    score: float


class Suggestions(BaseModel):
    """The suggested labels of a text."""

    results: list[Suggestion]


class DocumentSuggestions(Suggestions):
    """The suggested labels of one of several documents."""

    document_id: str | None


class Document(BaseModel):
    """One of several documents."""

    model_config = ConfigDict(strict=True)
    text: Name
    document_id: Name | None = None


class AnnifDocuments(BaseModel):
    """Several documents."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"documents": [{"text": "A galaxy survey.", "document_id": "1"}]}]}
    )
    documents: list[Document]


class Project(BaseModel):
    """A model in the terms of Annif."""

    project_id: str
    name: str
    language: str
    backend: dict[str, str]
    vocab: dict[str, Any]
    vocab_language: str
    is_trained: bool
    modification_time: str


class Projects(BaseModel):
    """All models in the terms of Annif."""

    projects: list[Project]


router = APIRouter(prefix="/v1/projects", responses=ERRORS, tags=["annif"])


@router.get("")
async def list_projects(server: Server) -> Projects:
    """List the served models."""
    return Projects(projects=[_project(served) for served in server.registry.models.values()])


@router.get("/{project_id}")
async def show_project(project_id: str, server: Server) -> Project:
    """Show a served model."""
    return _project(server.find_model(project_id))


@router.post("/{project_id}/suggest", response_model=Suggestions, responses=PREDICT_ERRORS)
async def suggest(
    project_id: str,
    request: Request,
    server: Server,
    text: Annotated[Name, Form(min_length=1, examples=["A galaxy survey."])],
    limit: Annotated[Limit, Form()] = 10,
    threshold: Annotated[Threshold, Form()] = 0.0,
) -> JSONResponse:
    """Suggest labels for a text, those with the highest scores first."""
    (results,) = await _suggest(server, request, project_id, [text], limit, threshold)
    return JSONResponse({"results": results})


@router.post("/{project_id}/suggest-batch", response_model=list[DocumentSuggestions], responses=PREDICT_ERRORS)
async def suggest_batch(
    project_id: str,
    body: AnnifDocuments,
    request: Request,
    server: Server,
    limit: Annotated[Limit, Query()] = 10,
    threshold: Annotated[Threshold, Query()] = 0.0,
) -> JSONResponse:
    """Suggest labels for several documents."""
    texts = [document.text for document in body.documents]
    results = await _suggest(server, request, project_id, texts, limit, threshold)
    ids = [document.document_id for document in body.documents]
    return JSONResponse([{"document_id": id, "results": each} for id, each in zip(ids, results, strict=True)])


async def _suggest(
    server: ServerState, request: Request, project_id: str, texts: list[str], limit: int, threshold: float
) -> list[list[dict[str, Any]]]:
    """The fields of `Suggestion` per text; an empty text has no suggestions, as in Annif."""
    served = server.find_model(project_id)

    def make_suggestions(scores: Matrix) -> list[list[dict[str, Any]]]:
        return [
            [
                {"uri": label["id"], "label": label["name"], "notation": None, "score": label["score"]}
                for label in top_labels(served.predictor.taxonomy, effective, limit)
                if label["score"] >= threshold and label["score"] > 0
            ]
            for effective in to_dense(served.decoder().effective(scores))
        ]

    scored = [text for text in texts if text.strip()]
    suggestions = iter(await server.run_job(request, served, scored, make_suggestions) if scored else ())
    return [next(suggestions) if text.strip() else [] for text in texts]


def _project(served: ServedModel) -> Project:
    name, size = served.name, len(served.predictor.taxonomy)
    return Project(
        project_id=name,
        name=name,
        language=UNKNOWN_LANGUAGE,
        backend={"backend_id": "hill"},
        vocab={"vocab_id": name, "languages": [UNKNOWN_LANGUAGE], "size": size, "loaded": True},
        vocab_language=UNKNOWN_LANGUAGE,
        is_trained=True,
        modification_time=datetime.fromtimestamp(served.saved_at, UTC).isoformat(timespec="seconds"),
    )
