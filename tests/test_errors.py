"""Errors: the commands that they print to install missing packages."""

import ast
import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from hill import errors
from hill.errors import ConfigError, need
from tests.conftest import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["data", "serve", "ray", "sklearn"])
def test_a_missing_package_names_a_command_that_needs_no_index_of_hill(extra: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^a test needs no_such, which is not installed; run: pip install '"
    ) as caught:
        need("no_such.module", extra, "a test")
    command = shlex.split(str(caught.value).partition("run: ")[2])
    assert command[:2] == ["pip", "install"]
    assert {re.sub(r"\s", "", each) for each in command[2:]} == {re.sub(r"\s", "", each) for each in EXTRAS[extra]}


def test_without_metadata_the_package_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(errors, "requires", fail)
    with pytest.raises(ConfigError, match=r"run: pip install no_such$"):
        need("no_such.module", "data", "a test")


def test_one_function_makes_all_commands_and_every_extra_exists() -> None:
    for file in sorted((ROOT / "hill").rglob("*.py")):
        text = file.read_text()
        assert "pip install" not in text or file.name == "errors.py", f"{file} has an install command of its own"
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "need" and len(call.args) == 3:
                extra = call.args[1]
                assert not isinstance(extra, ast.Constant) or extra.value in EXTRAS, f"{file}:{call.lineno}"
