"""What can be asked: predictions, models and labels."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from hill.serve.answers import answer_texts
from hill.serve.bodies import Answer, Asked, Known, Listed, Model, WholeLabel
from hill.serve.desk import TheDesk
from hill.serve.problems import COMPUTING, PROBLEMS
from hill.serve.shelf import Served

router = APIRouter(prefix="/v1", responses=PROBLEMS)
ModelName = Annotated[str | None, Query(description="Name of a served model; the first is the default.")]


@router.post("/predict", response_model=Answer, responses=COMPUTING, tags=["predict"])
async def predict(asked: Asked, request: Request, desk: TheDesk) -> JSONResponse:
    """Predict the labels of texts; requests that come at the same time are computed together."""
    served = desk.find(asked.model)
    explain = asked.explain if asked.explain is not None else False
    _check_explain(served, explain)
    decoder = served.decoder(asked.strategy, asked.threshold)
    then = partial(answer_texts, served, decoder, asked.all, asked.top_k, explain)
    predictions = await desk.ask(request, served, asked.all, then)
    chosen = {"strategy": decoder.config.strategy, "threshold": decoder.config.threshold}
    return JSONResponse({"model": served.name, **chosen, "predictions": predictions})


def _check_explain(served: Served, explain: bool | list[str]) -> None:
    if explain is not False and served.explain is None:
        raise HTTPException(409, f"the model '{served.name}' is exported and has no gradients, which explaining needs")
    for label in explain if isinstance(explain, list) else []:
        _check_label(served, label)


def _check_label(served: Served, label: str) -> None:
    if label not in served.predictor.taxonomy:
        raise HTTPException(404, f"there is no label '{label}'; labels are named by their ids")


@router.get("/models", tags=["models"])
async def list_models(desk: TheDesk) -> list[Known]:
    """The models that are served."""
    default = desk.shelf.default
    return [Known(**served.short(served is default)) for served in desk.shelf.models.values()]


@router.get("/model", response_model=Model, tags=["models"])
async def show_model(desk: TheDesk, model: ModelName = None) -> JSONResponse:
    """What there is to know of a model."""
    served = desk.find(model)
    return JSONResponse(served.document(served is desk.shelf.default))


@router.get("/taxonomy", response_model=Listed, tags=["labels"])
async def list_labels(
    desk: TheDesk,
    model: ModelName = None,
    parent: Annotated[str | None, Query(description="Id of the label whose children to list; else the roots.")] = None,
    search: Annotated[str | None, Query(description="Words that id or name must have; best first.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="200, of a search 50.")] = None,
) -> JSONResponse:
    """The labels below a label, or those that have some words in id or name."""
    served = desk.find(model)
    rows: Any
    if search and search.strip():
        parent, rows, limit = None, served.labels.search(search), limit or 50
    else:
        if parent is not None:
            _check_label(served, parent)
        rows, limit = served.labels.below(parent), limit or 200
    shown = [served.labels.document(int(row)) for row in rows[offset : offset + limit]]
    return JSONResponse({"parent": parent, "total": len(rows), "labels": shown})


@router.get("/labels/{id:path}", response_model=WholeLabel, tags=["labels"])
async def show_label(id: str, desk: TheDesk, model: ModelName = None) -> JSONResponse:
    """A label, with its paths from the roots."""
    served = desk.find(model)
    _check_label(served, id)
    return JSONResponse(served.labels.whole(id))
