"""The command line: parse, call, print."""

from hill.cli import data, research, review, train, use
from hill.cli.common import app, main

_ORDER = (
    *("demo", "check", "errors", "start", "train", "ensemble"),
    *("evaluate", "predict", "suggest", "explain", "serve", "export_labels", "import_labels", "export"),
    *("tree", "settings", "card"),
)
"""The commands in the order of the help text."""

app.registered_commands.sort(key=lambda command: command.hidden or _ORDER.index(command.callback.__name__))  # type: ignore[union-attr]

__all__ = ["app", "data", "main", "research", "review", "train", "use"]
