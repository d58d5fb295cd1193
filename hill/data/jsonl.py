"""JSON Lines: one object a line."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hill.data.files import open_lines


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each line's object, or a sentence on why it cannot be read."""
    line = 0
    try:
        for line, content in open_lines(path):
            if content.strip():
                yield line, _parse(line, content)
    except (OSError, EOFError, zlib.error) as error:
        yield line + 1, f"the file cannot be read on: {error}"


def _parse(line: int, content: bytes) -> dict[str, Any] | str:
    try:
        value = json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
    except json.JSONDecodeError as error:
        array = line == 1 and content.lstrip().startswith(b"[")
        remedy = "write one object a line, not one array" if array else "expected one JSON object a line"
        return f"not JSON: {error.msg} at character {error.pos + 1}; {remedy}"
    except (RecursionError, ValueError) as error:
        return f"not usable JSON: {error}"
    return (
        value if isinstance(value, dict) else f"a JSON {type(value).__name__}; expected an object with text and labels"
    )
