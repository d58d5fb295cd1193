"""`hill` in this process, for tests that are not about the process: what it prints, and its exit code."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from hill.cli.common import main


def hill(*arguments: str | Path, stdin: str = "") -> CompletedProcess[str]:
    """The command with these arguments, through `main` as in a process of its own."""
    words, out, errors = ["hill", *map(str, arguments)], io.StringIO(), io.StringIO()
    given = patch.multiple(sys, argv=words, stdin=io.StringIO(stdin))
    with given, redirect_stdout(out), redirect_stderr(errors):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return CompletedProcess(words, code, out.getvalue(), errors.getvalue())
