"""Error responses: every error is a JSON object with one lower-case sentence, `{"detail": "..."}`."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from hill.errors import HillError


class ErrorResponse(BaseModel):
    """Why a request failed."""

    detail: str = Field(examples=["give either text or texts"])


def _responses(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse, "description": text} for status, text in descriptions.items()}


ERRORS = _responses(
    {
        401: "The API key is missing or wrong.",
        404: "The model or label does not exist.",
        421: "The Host header is not a name of this server.",
        422: "A field is invalid.",
    }
)
"""Error responses of every route, for the OpenAPI description."""
PREDICT_ERRORS = _responses(
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


def error_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The response for an error."""
    return JSONResponse({"detail": detail}, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn expected exceptions into error responses; the middleware handles unexpected ones."""
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(StarletteHTTPException, _handle_http_exception)
    app.add_exception_handler(HillError, _handle_hill_error)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(422, _printable(_validation_message(error.errors())))


async def _handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    detail = _lower_first(error.detail)
    if not isinstance(error, HTTPException):  # raised by the router, not by a route
        detail = {
            404: f"there is nothing at '{request.scope['path']}'; /docs lists all paths",
            405: f"'{request.scope['path']}' does not support {request.method}; /docs lists the methods of each path",
        }.get(error.status_code, detail)
    return error_response(error.status_code, _printable(detail), dict(error.headers or {}))


async def _handle_hill_error(request: Request, error: Exception) -> JSONResponse:
    return error_response(422, _printable(str(error)))


def _validation_message(errors: Any) -> str:
    """The first error; if its field is a union, the error of the alternative that matched furthest."""
    first = max(errors, key=lambda error: (error["loc"][:2] == errors[0]["loc"][:2], len(error["loc"])))
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {_lower_first(first['ctx']['error'])} at character {first['loc'][-1]}"
    if first["type"] == "model_attributes_type" and len(first["loc"]) == 1:
        return "the body is not a JSON object; expected one, sent as application/json"
    field = ".".join(str(part) for part in first["loc"][1:] if part != "bool" and "[" not in str(part))
    message = _lower_first(first["msg"].removeprefix("Value error, "))
    if message.startswith(("is ", "has ")):
        return f"{field} {message}"
    return f"{field}: {message}" if field else message


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _printable(text: str) -> str:
    """One line of valid UTF-8 with at most 500 characters, because it may quote the request."""
    return str(HillError(text.encode(errors="replace").decode()[:500]))
