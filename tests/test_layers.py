"""The rooms of the package: imports point one way, and only the command line imports inside functions."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

ORDER = [
    {"disk", "guard", "errors", "types", "extras", "settings"},
    {"taxonomy"},
    {"tree"},
    {"nn"},
    {"data", "metrics"},
    {"models"},
    {"train"},
    {"decode"},
    {"predictor"},
    {"hub"},
    {"explain"},
    {"classifier"},
    {"engines", "experiment", "export", "demo"},
    {"report", "serve"},
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
MODULES = sorted((ROOT / "hill").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "hill").parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[1] for name in names if name.startswith("hill.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    tree, room = ast.parse(path.read_text()), room_of(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = [node for f in functions for node in ast.walk(f) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert room == "cli" or not hidden, "only the command line imports inside functions"
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)), "imports are absolute"
    if room == "__init__":
        return
    for other in imported_rooms(tree) - {room}:
        assert RANK[other] < RANK[room] or RANK[room] == 0, f"{room} may not import {other}"


def test_a_wrong_import_would_be_seen() -> None:
    assert imported_rooms(ast.parse("import hill.cli\nfrom hill.train.loop import x")) == {"cli", "train"}
    assert RANK["cli"] > RANK["data"] > RANK["taxonomy"]


NO_TORCH = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if {"torch", "transformers"} & {name.split(".")[0] for name in sys.modules}:
        sys.exit(f"{module} needs torch")
"""


def test_no_torch_is_needed() -> None:
    modules = ["hill", "hill.cli", "hill.taxonomy", "hill.data.check", "hill.metrics", "hill.tree"]
    found = subprocess.run([sys.executable, "-c", NO_TORCH, *modules], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_importing_the_package_loads_almost_nothing() -> None:
    program = "import sys, hill; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "scipy", "numba", "rich", "typer"} & set(loaded)
