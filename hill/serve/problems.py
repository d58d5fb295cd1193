"""What went wrong, as one lower-case sentence in JSON."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from hill.errors import HillError
from hill.serve.bodies import Problem


def _described(texts: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


PROBLEMS = _described(
    {
        401: "The API key is missing or wrong.",
        404: "There is no such model or label.",
        422: "A field is wrong.",
    }
)
"""Answers that are no answers, by status."""
COMPUTING = _described(
    {
        400: "The body cannot be read.",
        409: "The model cannot do this.",
        413: "The body is too large.",
        422: "A field is wrong, or there are too many texts.",
        503: "Too many texts are waiting; see Retry-After.",
        504: "There was no answer in time.",
    }
)
"""Those of requests that send texts."""


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem as a response."""
    return JSONResponse({"detail": detail}, status, headers)


def handle_problems(app: FastAPI) -> None:
    """Let every error that we know become a problem; the gate sees to the others."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(HillError, _known)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem(422, _printable(_sentence(error.errors())))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    detail = _lower(error.detail)
    if not isinstance(error, HTTPException):  # of the router, not of ours
        detail = {
            404: f"there is nothing at '{request.scope['path']}'; /docs lists what there is",
            405: f"'{request.scope['path']}' is not for {request.method}; /docs says what it is for",
        }.get(error.status_code, detail)
    return problem(error.status_code, _printable(detail), dict(error.headers or {}))


async def _known(request: Request, error: Exception) -> JSONResponse:
    return problem(422, _printable(str(error)))


def _sentence(errors: Any) -> str:
    """The first error; of those of a value that may be of several kinds, the one of the kind that went furthest."""
    first = max(errors, key=lambda error: (error["loc"][:2] == errors[0]["loc"][:2], len(error["loc"])))
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {_lower(first['ctx']['error'])} at character {first['loc'][-1]}"
    if first["type"] == "model_attributes_type" and len(first["loc"]) == 1:
        return "the body is no JSON object; expected one, sent as application/json"
    where = ".".join(str(part) for part in first["loc"][1:] if part != "bool" and "[" not in str(part))
    what = _lower(first["msg"].removeprefix("Value error, "))
    if what.startswith(("is ", "has ")):
        return f"{where} {what}"
    return f"{where}: {what}" if where else what


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _printable(text: str) -> str:
    """Text of one line that can be written as UTF-8, whatever a client sent, and not without end."""
    return str(HillError(text.encode(errors="replace").decode()[:500]))
