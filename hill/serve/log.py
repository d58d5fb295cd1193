"""The log: one JSON object a line, on standard error, never with a text that was sent."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("hill.serve")
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of what a client sent, who is told so anyway


class JsonLines(logging.Formatter):
    """A record as one line of JSON; of an error what it is and where, as its message may quote a text."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        line = {"time": time, "level": record.levelname.lower(), **fields}
        if record.exc_info and record.exc_info[1]:
            line |= _error(record.exc_info[1])
        return json.dumps(line)


def start_log(level: int = logging.INFO) -> None:
    """Send what the server and uvicorn have to say to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in (LOGGER.name, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if logger is LOGGER else logging.WARNING)


def note(level: int, error: BaseException | None = None, **fields: Any) -> None:
    """Write a line with these fields."""
    LOGGER.log(level, "", extra={"fields": fields}, exc_info=error)


def _error(error: BaseException) -> dict[str, Any]:
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return {"error": type(error).__name__, "places": places[-8:]}
