"""The errors that this package raises on purpose, and helpers for their messages."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

MAX_MESSAGE_LENGTH = 1_500
"""Longer messages are shortened in the middle."""
LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, bidirectional overrides and lone surrogates."""
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
"""Phrases in the errors that torch raises if there is too little memory."""


class HillError(ValueError):
    """Base class of all errors that this package raises on purpose. The message is one printable line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class TaxonomyError(HillError):
    """A taxonomy cannot be read or is invalid."""


class DataError(HillError):
    """A data file cannot be read, or a document in it cannot be used."""


class ConfigError(HillError):
    """A setting is unknown, has the wrong type, is out of range, or needs an extra that is not installed."""


class CheckpointError(HillError):
    """A saved model is incomplete, damaged, or does not fit the request."""


def need(module: str, extra: str, purpose: str) -> Any:
    """Import an optional module, or raise a `ConfigError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0]
        command = install_command(*_requirements(extra) or [package])
        raise ConfigError(f"{purpose} needs {package}, which is not installed; run: {command}") from None


def install_command(*requirements: str, options: str = "") -> str:
    """The command that installs packages. They are on PyPI, so it works for a checkout and for a wheel of hill.

    >>> install_command("fastapi>=0.115", "uvicorn")
    "pip install 'fastapi>=0.115' uvicorn"
    """
    return " ".join(["pip install", *([options] if options else []), *map(shlex.quote, requirements)])


def _requirements(extra: str) -> list[str]:
    """The packages of an extra, from the metadata of the installed distribution."""
    with suppress(PackageNotFoundError):
        pattern = re.compile(rf"""(.+?)\s*;\s*extra\s*==\s*['"]{extra}['"]""")
        return [match[1] for match in map(pattern.fullmatch, requires("hill-htc") or ()) if match]
    return []


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn out-of-memory errors of the device or the machine into a `ConfigError` that says what to reduce."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        sentences = str(error).split("\n")[0].split(". ")
        reasons = [sentence for sentence in sentences if any(phrase in sentence for phrase in OUT_OF_MEMORY)]
        if not reasons and not isinstance(error, MemoryError):
            raise
        raise ConfigError(
            f"there is not enough memory ({(reasons or sentences)[0][:200]}); lower train.batch_size, data.max_length "
            "or the widths of the model, or use a smaller encoder"
        ) from None


def one_line(text: str) -> str:
    r"""Turn a text into one printable line: escape control characters and shorten long texts in the middle.

    >>> one_line("label 'a\x1b' of\n  a file")
    "label 'a\\x1b' of a file"
    """
    line = UNPRINTABLE.sub(_escape, LINE_BREAK.sub(" ", text))
    if len(line) <= MAX_MESSAGE_LENGTH:
        return line
    return f"{line[: MAX_MESSAGE_LENGTH // 2]} … {line[-MAX_MESSAGE_LENGTH // 3 :]}"


def counted(count: int, noun: str) -> str:
    """A number and a noun, which gets an s unless the number is 1.

    >>> counted(1, "document"), counted(1_000, "document")
    ('1 document', '1,000 documents')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Escape control characters except tabs and line breaks, so that foreign text cannot control a terminal.

    >>> printable("red \\x1b[31m and a bell \\x07, but\\ttabs and\\nlines stay")
    'red \\\\x1b[31m and a bell \\\\x07, but\\ttabs and\\nlines stay'
    """
    return UNPRINTABLE.sub(lambda match: match[0] if match[0] in "\t\n" else _escape(match), text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
