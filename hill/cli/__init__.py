"""The command line: parse, call, print."""

from hill.cli import data, research, training, using  # the commands, in the order of the help text
from hill.cli.common import app, main

__all__ = ["app", "data", "main", "research", "training", "using"]
