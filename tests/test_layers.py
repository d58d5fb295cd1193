"""The layers of the package: imports point one way, without cycles, and only the command line imports in functions."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = [
    {"errors", "types"},
    {"html", "io", "ngrams", "settings", "sparse"},
    {"taxonomy"},
    {"tree"},
    {"encoders"},
    {"data", "metrics"},
    {"models"},
    {"train", "decode"},
    {"card", "presets"},
    {"predictor"},
    {"explain"},
    {"classifier"},
    {"bulk", "cold_start", "demo", "export", "label_errors", "suggest"},
    {"report", "research", "revision", "serve"},
    {"cli"},
    {"__main__"},
]
"""The parts of the package; each may import those above it."""
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
MODULES = sorted((ROOT / "hill").rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path) for path in MODULES}


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of the package that code imports anywhere, also for type checkers only."""
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name if (name := f"{node.module}.{alias.name}") in NAMES else node.module for alias in node.names}
    return {name for name in found if name.split(".")[0] == "hill" and name != "hill"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    tree, own = ast.parse(path.read_text()), (module_name(path) + ".").split(".")[1]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = [node for f in functions for node in ast.walk(f) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert own == "cli" or not hidden, "only the command line imports inside functions"
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)), "imports are absolute"
    for other in {name.split(".")[1] for name in imported_modules(tree)} - {own} if own else ():
        assert LAYER[other] < LAYER[own], f"{own} may not import {other}"


def test_there_are_no_cycles_between_modules() -> None:
    """A package's __init__, which only collects names, is left out."""
    graph = {
        module_name(path): imported_modules(ast.parse(path.read_text()))
        for path in MODULES
        if path.name != "__init__.py"
    }
    TopologicalSorter(graph).prepare()


def test_models_do_not_import_models() -> None:
    shared = {"base", "layers", "large_label", "inference"}
    for path in (ROOT / "hill" / "models").glob("*.py"):
        if path.stem not in (shared | {"__init__"}):
            found = {name.split(".")[2] for name in imported_modules(ast.parse(path.read_text())) if "models." in name}
            assert found <= shared, path


def test_a_wrong_import_would_be_seen() -> None:
    found = imported_modules(ast.parse("import hill.cli\nfrom hill.train import trainer\nfrom hill.errors import X"))
    assert found == {"hill.cli", "hill.train.trainer", "hill.errors"}
    assert LAYER["cli"] > LAYER["data"] > LAYER["taxonomy"]


NO_TORCH = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if {"torch", "transformers"} & {name.split(".")[0] for name in sys.modules}:
        sys.exit(f"{module} needs torch")
"""


def test_no_torch_is_needed() -> None:
    modules = ["hill", "hill.cli", "hill.taxonomy", "hill.data.check", "hill.metrics", "hill.tree", "hill.predictor"]
    modules += ["hill.bulk", "hill.export.runtime"]
    found = subprocess.run([sys.executable, "-c", NO_TORCH, *modules], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_importing_the_package_loads_almost_nothing() -> None:
    program = "import sys, hill; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "scipy", "numba", "rich", "typer"} & set(loaded)


@pytest.mark.parametrize("module", ["hill.predictor", "hill.export.onnx", "hill.explain", "hill.card"])
def test_prediction_does_not_import_training(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('hill.train')))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert loaded == []
