"""The Dockerfile and the workflow: without their engines, what they name must exist, and commands must parse."""

import json
import re
import shlex
from importlib.metadata import metadata

import pytest
import yaml
from typer.main import get_command

from hill.cli.common import app
from hill.serve.middleware import PUBLIC_PATHS
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip() and not line.startswith("#")]  # type: ignore[misc]


def test_what_the_image_copies_is_there_and_not_ignored(instructions: list[tuple[str, str]]) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for _, value in (each for each in instructions if each[0] == "COPY"):
        *sources, _ = value.split()
        for source in sources:
            assert (ROOT / source).exists() and source.split("/")[0] in allowed


def test_the_image_runs_as_a_user_and_installs_what_it_needs(instructions: list[tuple[str, str]]) -> None:
    names = [name for name, _ in instructions]
    assert names.index("USER") < names.index("ENTRYPOINT") and dict(instructions)["USER"] != "root"
    commands = " ".join(value for name, value in instructions if name == "RUN")
    (extras,) = re.findall(r"'\.\[(.*?)\]'", commands)
    assert set(extras.split(",")) <= set(metadata("hill-htc").get_all("Provides-Extra") or [])
    assert "serve" in extras.split(",") and f"useradd --create-home {dict(instructions)['USER']}" in commands


def test_the_image_serves_and_its_health_is_checked_without_a_key(instructions: list[tuple[str, str]]) -> None:
    given = dict(instructions)
    entry, arguments = json.loads(given["ENTRYPOINT"]), json.loads(given["CMD"])
    assert entry == ["hill"]
    command = get_command(app).commands[arguments[0]]  # type: ignore[attr-defined]
    context = command.make_context(arguments[0], arguments[1:], resilient_parsing=False)
    assert context.params["host"] == "0.0.0.0"
    (port,) = re.findall(r"127\.0\.0\.1:(\d+)", given["HEALTHCHECK"])
    assert int(port) == context.params["port"] == int(given["EXPOSE"])
    (path,) = re.findall(rf"{port}(/\w+)'", given["HEALTHCHECK"])
    assert path in PUBLIC_PATHS
    compile(json.loads(given["HEALTHCHECK"].partition("CMD ")[2])[2], "healthcheck", "exec")


def test_the_workflow_runs_targets_of_the_makefile() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [shlex.split(step["run"]) for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert commands == [["make", name] for name in ("lint", "test", "test-browser")]
    assert all(words[1] in targets for words in commands)
