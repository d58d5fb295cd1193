"""What the README says can be done."""

import doctest
import re
import shlex

import pytest
from typer.main import get_command

from hill.cli import app
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
COMMANDS = sorted(
    {
        (page.name, line.split(" #")[0].strip())
        for page in PAGES
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.S)
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip().startswith(("hill ", "make "))
    }
)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_exists(page: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.M)
        return
    command = get_command(app)
    while hasattr(command, "commands"):
        words = words[1:]
        assert words[0] in command.commands, f"{page} names '{line}'"
        command = command.commands[words[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options


def test_there_are_commands_to_test() -> None:
    assert {line for page, line in COMMANDS if page == "README.md"} >= {"make demo", "make test"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: object) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: object) -> None:
    text = page.read_text()  # type: ignore[attr-defined]
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target  # type: ignore[attr-defined]
