"""The review API: documents of a queue go to reviewers, and their answers to an answers file.

A document is reserved for the reviewer who receives it, also across several servers with the same answers file.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hill.data.annotation import QueuedDocument, read_queue, without_ancestors
from hill.data.answers import Answers, document_key
from hill.errors import DataError
from hill.serve.api import (
    ERRORS,
    PREDICT_ERRORS,
    Name,
    PredictRequest,
    Server,
    TextPrediction,
    check_unicode,
    error_responses,
    make_predictions,
)
from hill.taxonomy import Taxonomy

MAX_SCORES = 200
"""Labels with the highest scores that are sent with a document."""
MAX_CANDIDATES = 5
"""Labels that are offered besides the suggested ones; each has a key, its number."""

# Schemas


def _check_name(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; expected a name")
    return check_unicode(text.strip())


ShortText = Annotated[str, Field(max_length=100)]


class Reviewer(BaseModel):
    """Who reviews."""

    model_config = ConfigDict(strict=True, extra="forbid")

    reviewer: Annotated[ShortText, AfterValidator(_check_name), Field(json_schema_extra={"pattern": r"\S"})]
    session: Annotated[ShortText, AfterValidator(check_unicode)] = Field(
        "", description="Distinguishes reviewers, or windows, of the same name."
    )

    @property
    def owner(self) -> str:
        """The owner of a claim."""
        return f"{self.reviewer}\n{self.session}"


_ANSWER_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"properties": {"action": {"enum": ["skip"]}, "labels": {"maxItems": 0}}},
        {"properties": {"action": {"enum": ["accept", "correct"]}, "labels": {"minItems": 1}}, "required": ["labels"]},
    ]
}
"""JSON schema of the rule that combines action and labels."""


class AnswerRequest(Reviewer):
    """An answer to a document."""

    model_config = ConfigDict(json_schema_extra=_ANSWER_SCHEMA)

    document: Name = Field(description="Key of the document.")
    action: Literal["accept", "correct", "skip"]
    labels: Annotated[list[Name], Field(max_length=1000)] = Field([], description="Ids of labels; none for skip.")

    @model_validator(mode="after")
    def _check_labels(self) -> "AnswerRequest":
        if self.action == "skip" and self.labels:
            raise ValueError("labels are given with the action skip; expected none")
        if self.action != "skip" and not self.labels:
            raise ValueError(f"there are no labels with the action {self.action}; expected at least one, or skip")
        return self


class Progress(BaseModel):
    """Documents of the queue: all, labelled, skipped, and labelled or skipped by the reviewer."""

    total: int
    labelled: int
    skipped: int
    mine: int


class ReviewStatus(Progress):
    """Whether the server has a queue, and the progress."""

    active: bool


class ReviewLabel(BaseModel):
    """A label with the names on its first path from a root, and its score if it is among the highest ones."""

    id: str
    names: list[str]
    score: float | None


class ReviewDocument(BaseModel):
    """A document to review."""

    key: str
    id: str
    text: str
    reason: str = Field(description="Why it is in the queue.")
    suggested: list[ReviewLabel] = Field(description="From the queue or else from the model, without ancestors.")
    given: list[ReviewLabel] = Field(description="After undo: the labels of the answer that was undone.")
    candidates: list[ReviewLabel] = Field(description="Other labels with high scores, the most specific ones.")
    prediction: TextPrediction


class ReviewTask(BaseModel):
    """The next document, or null if there is none that nobody else has."""

    document: ReviewDocument | None
    progress: Progress


# State


class Review:
    """A queue and its answers file."""

    def __init__(self, queue: Path, answers: Path, taxonomy: Taxonomy) -> None:
        self.documents = {document.key: document for document in read_queue(queue, taxonomy)}
        self.answers = Answers(answers)
        self.answers.set_queue(list(self.documents))

    def close(self) -> None:
        """Make a backup and close the answers file."""
        self.answers.close()


async def _review(request: Request) -> Review:
    review: Review | None = request.app.state.review
    if review is None:
        raise HTTPException(409, "this server has no queue; start it with: hill serve MODEL --review queue.jsonl")
    return review


async def _check_origin(request: Request) -> None:
    """Refuse requests of other sites: a browser sends their origin, and may send a request without asking first."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "the request comes from a page of another site")


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise HTTPException(503, f"nothing was saved: {error}", {"Retry-After": "5"}) from None


ActiveReview = Annotated[Review, Depends(_review)]
WRITE_ERRORS = {
    **PREDICT_ERRORS,
    **error_responses({403: "The request comes from another site.", 409: "The server has no queue."}),
}

# Routes

router = APIRouter(prefix="/v1/review", responses=ERRORS, tags=["review"], dependencies=[Depends(_check_origin)])


@router.get("")
async def show_status(
    request: Request,
    reviewer: Annotated[str, Query(max_length=100, description="Count the answers of this reviewer.")] = "",
) -> ReviewStatus:
    """Show whether the server has a queue, and how many documents are done."""
    review: Review | None = request.app.state.review
    if review is None:
        return ReviewStatus(active=False, total=0, labelled=0, skipped=0, mine=0)
    return ReviewStatus(active=True, **await _progress(review, reviewer))


@router.post("/next", response_model=ReviewTask, responses=WRITE_ERRORS)
async def next_document(body: Reviewer, request: Request, server: Server, review: ActiveReview) -> JSONResponse:
    """Reserve the next document for a reviewer. The reviewer's own reserved document comes first."""
    with _storage_errors():
        key = await run_in_threadpool(review.answers.claim, body.owner)
    return await _task(request, server, review, body, review.documents[key] if key else None)


@router.post("/answers", response_model=Progress, responses=WRITE_ERRORS)
async def add_answer(body: AnswerRequest, server: Server, review: ActiveReview) -> JSONResponse:
    """Save an answer. It never replaces another one; of several answers to a document the last one counts."""
    if body.document not in review.documents:
        raise HTTPException(404, f"there is no document '{body.document}' in the queue")
    document, taxonomy = review.documents[body.document], server.registry.default.predictor.taxonomy
    for label in body.labels:
        if label not in taxonomy:
            raise HTTPException(404, f"there is no label '{label}'; expected the id of a label")
    rows = taxonomy.closure(map(taxonomy.row, body.labels)).tolist()
    labels = taxonomy.decode(without_ancestors(taxonomy, rows))
    with _storage_errors():
        await run_in_threadpool(review.answers.add, body.reviewer, body.action, document.id, document.text, labels)
    return JSONResponse(await _progress(review, body.reviewer))


@router.post("/undo", response_model=ReviewTask, responses=WRITE_ERRORS)
async def undo_answer(body: Reviewer, request: Request, server: Server, review: ActiveReview) -> JSONResponse:
    """Undo the reviewer's last answer and return its document, or null if there is no answer to undo."""
    with _storage_errors():
        undone = await run_in_threadpool(review.answers.undo, body.reviewer, body.owner, review.documents)
    if undone is None:
        return await _task(request, server, review, body, None)
    document = review.documents[document_key(undone.text)]
    taxonomy = server.registry.default.predictor.taxonomy
    given = [label for label in undone.labels if label in taxonomy]  # the answer may be older than the taxonomy
    return await _task(request, server, review, body, document, given)


async def _task(
    request: Request,
    server: Server,
    review: Review,
    reviewer: Reviewer,
    document: QueuedDocument | None,
    given: Sequence[str] = (),
) -> JSONResponse:
    """The fields of `ReviewTask`."""
    fields: dict[str, Any] | None = None
    if document is not None:
        served = server.registry.default
        query = PredictRequest.model_validate({"text": document.text, "top_k": MAX_SCORES})
        finish = partial(make_predictions, served, served.decoder(None, None), query)
        (prediction,) = await server.run_job(request, served, [document.text], finish)
        fields = {
            "key": document.key,
            "id": document.id,
            "text": document.text,
            "reason": document.reason,
            "prediction": prediction,
            **_labels(served.predictor.taxonomy, document, given, prediction),
        }
    return JSONResponse({"document": fields, "progress": await _progress(review, reviewer.reviewer)})


def _labels(
    taxonomy: Taxonomy, document: QueuedDocument, given: Sequence[str], prediction: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """The fields of `ReviewDocument` that are labels."""
    scores = {label["id"]: label["score"] for label in (*prediction["scores"], *prediction["labels"])}

    def label_fields(ids: Iterable[str]) -> list[dict[str, Any]]:
        paths = {id: next(taxonomy.paths(taxonomy.row(id))) for id in ids}
        return [
            {"id": id, "names": [taxonomy[row].name for row in path], "score": scores.get(id)}
            for id, path in paths.items()
        ]

    suggested = document.labels or [path[-1] for path in prediction["paths"]]
    inner = {row for id in (*scores, *suggested) for row in taxonomy.ancestors(taxonomy.row(id)).tolist()}
    candidates = [id for id in scores if taxonomy.row(id) not in inner and id not in suggested]
    return {
        "suggested": label_fields(suggested),
        "given": label_fields(given),
        "candidates": label_fields(candidates[:MAX_CANDIDATES]),
    }


async def _progress(review: Review, reviewer: str) -> dict[str, int]:
    with _storage_errors():
        return await run_in_threadpool(review.answers.progress, reviewer)
