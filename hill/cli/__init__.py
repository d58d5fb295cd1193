"""The command line: parse, call, print."""

from hill.cli import data, explain, hub, research, serve, taxonomy, training, using
from hill.cli.common import app, main

_ORDER = (
    *("check", "tree", "train", "settings", "evaluate", "predict", "explain", "serve", "export", "card"),
    *("experiment", "compare", "demo"),
)
"""The commands in the order of the help text: as a user comes to need them."""

app.registered_commands.sort(key=lambda command: _ORDER.index(command.callback.__name__))  # type: ignore[union-attr]

__all__ = ["app", "data", "explain", "hub", "main", "research", "serve", "taxonomy", "training", "using"]
