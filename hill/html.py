"""HTML pages: Jinja2 templates from `hill/templates/`, with one stylesheet for all pages.

A page is a single file without network access: style and script are inside. Templates escape every value, and a
Content-Security-Policy in each page allows nothing but its own style and script.
"""

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_environment = Environment(
    loader=PackageLoader("hill"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_environment.filters |= {
    "percent": lambda share: f"{100 * share:.1f}",
    "thousands": lambda number: f"{number:,}",
    "decimals": lambda number, digits: f"{number:.{digits}f}",
    "signed": lambda number, digits=2: f"{number:+.{digits}f}",
    "json": lambda value: json.dumps(value, indent=1),
}


def render(template: str, **values: Any) -> str:
    """Render a template of the folder with these values."""
    return _environment.get_template(template).render(style=source("style.css"), **values)


def source(name: str) -> Markup:
    """Return the content of a stylesheet or script of the folder, to insert into a page unescaped."""
    assert _environment.loader is not None
    return Markup(_environment.loader.get_source(_environment, name)[0])
