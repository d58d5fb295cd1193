"""The command line: parse, call, print."""

from hill.cli import data, research, train, use
from hill.cli.common import app, main

_ORDER = (
    "demo",
    "check",
    "errors",
    "start",
    "train",
    "evaluate",
    "predict",
    "suggest",
    "explain",
    "serve",
    "export",
    "tree",
    "settings",
    "card",
)
"""The commands in the order of the help text."""

app.registered_commands.sort(key=lambda command: command.hidden or _ORDER.index(command.callback.__name__))  # type: ignore[union-attr]

__all__ = ["app", "data", "main", "research", "train", "use"]
