"""The command line: parse, call, print."""

from hill.cli import (  # the commands, in the order of the help text
    data,
    explain,
    hub,
    research,
    taxonomy,
    training,
    using,
)
from hill.cli.common import app, main

__all__ = ["app", "data", "explain", "hub", "main", "research", "taxonomy", "training", "using"]
