"""A report as values, and the files it is written to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hill.errors import ConfigError, DataError
from hill.report.page import make_page

FORMATS = (".html", ".json")


@dataclass(frozen=True)
class Report:
    """All that a report tells, as plain values by section."""

    sections: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        return self.sections

    def html(self) -> str:
        """A page that needs no network."""
        return make_page(self.sections)

    def write(self, file: Path) -> None:
        """Write a page or JSON, as the file's name ends."""
        check_target(file)
        text = self.html() if file.suffix == ".html" else json.dumps(self.sections, ensure_ascii=False) + "\n"
        try:
            file.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise DataError(f"cannot write '{file}': {error.strerror}") from None


def check_target(file: Path) -> None:
    """Raise if a report cannot be written to this file, which is better known before anything long begins."""
    if file.suffix not in FORMATS:
        raise ConfigError(f"the report is '{file}'; expected a name that ends in {' or '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise DataError(f"cannot write '{file}': there is no folder '{file.parent}'; make it first")
