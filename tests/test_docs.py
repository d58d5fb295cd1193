"""Every block of code in README and docs runs.

A page is one session in a folder of its own, in which the names that pages use (DATA, TAXONOMY, runs/mine, ...) are
small files and models. Its blocks run from top to bottom: python in one namespace, commands through the real command
line, with a tiny encoder in the place of minilm. A comment before a block may keep it from running and says why:

    <!-- parse: the corpus is licensed -->

Then python must compile, and commands and their options must exist.
"""

import doctest
import json
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

import hill
from hill.classifier import GROUPS, HillClassifier
from hill.cli.common import app
from hill.data.documents import label_documents
from hill.encoders import transformer as pretrained
from hill.settings import read_settings
from hill.taxonomy import Label, Taxonomy
from tests.conftest import ROOT, WORDS, toy_documents

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("sh", "bash", "console")
NEVER_RUN = {"demo", "research", "serve"}
"""Commands that take minutes or do not end; they are parsed."""
LABELS = Taxonomy(
    [
        Label("physics", "Physics"),
        Label("physics.optics", "Optics", ("physics",)),
        Label("physics.bio-ph", "Biological Physics", ("physics",)),
        Label("cs", "Computer Science"),
        Label("cs.LG", "Machine Learning", ("cs",), "Covers all aspects of learning."),
        Label("cs.IR", "Information Retrieval", ("cs", "physics")),
    ]
)
MEANT = {"bat": "cs.IR", "mo": "physics.optics", "fo": "cs.LG", "p": "physics.bio-ph"}
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, whether it is only parsed, its line, its text."""

    language: str
    parsed: bool
    line: int
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, without variables that are set before it."""
        lines = [shlex.split(line, comments=True) for line in self.text.replace("\\\n", " ").splitlines()]
        return [list(dropwhile(re.compile(r"[A-Z_]+=").match, words)) for words in lines if words]


def blocks_of(text: str) -> Iterator[Block]:
    fence = re.compile(
        r"^(?:<!-- parse: (?P<why>\S.*?) -->\n)?```(?P<language>\w*).*?\n(?P<text>.*?)^```$", re.M | re.S
    )
    for found in fence.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        yield Block(found["language"], found["why"] is not None, line, found["text"])


def leaf(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, and its arguments."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        words = words[1:]
        assert words and words[0] in command.commands, f"there is no command '{' '.join(words)}'"
        command = command.commands[words[0]]
    return command, words[1:]


def parse(words: list[str]) -> None:
    """Fail where a command, a target, an option or an extra does not exist."""
    if words[0] == "hill":
        command, arguments = leaf(words)
        command.make_context(command.name, list(arguments))
    elif words[0] in ("torchrun", "accelerate"):
        parse(words[words.index("-m") + 1 :])
    elif words[0] == "make":
        assert re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.M), words
    elif words[0] == "pip":
        assert "hill-htc" not in " ".join(words), "the package is not on a package index"
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = {extra for group in re.findall(r"\[([\w,-]+)\]", " ".join(words)) for extra in group.split(",")}
        assert asked <= known.keys(), asked - known.keys()
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), words
    elif words[0] == "curl":
        assert all(json.loads(body) for option, body in pairwise(words) if option in ("-d", "--data")), words
    else:
        raise AssertionError(
            f"a page shows '{words[0]}', which nothing here can check; say in a comment why it is only parsed"
        )


def run(words: list[str]) -> None:
    """Run a command where that is cheap, else parse it."""
    if words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
    elif words[0] == "hill" and words[1] not in NEVER_RUN:
        if words[1] == "train" and "--resume" not in words:
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        if words[1] == "train" and "train.epochs" not in " ".join(words) and "--minutes" not in words:
            words = [*words, "--set", "train.epochs=2"]  # a page is about the command, not about a good model
        result = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}"
    else:
        parse(words)


def run_block(block: Block, page: Path, names: dict[str, Any]) -> None:
    if block.language == "python":
        code = compile("\n" * block.line + block.text, str(page), "exec")
        if not block.parsed:
            exec(code, names)
    elif block.language in SHELLS:
        for words in block.commands:
            if not block.parsed:
                run(words)
            elif words[0] == "hill":
                parse(words)
    elif block.language == "toml":
        Path("block.toml").write_text(block.text)
        settings = read_settings(Path("block.toml"), [], GROUPS)
        HillClassifier(LABELS, settings["model"].pop("name", "hill"), settings, preset=None).get_params()


def write_lines(path: Path, count: int, seed: int) -> None:
    texts, labels = toy_documents(count, seed)
    lines = [
        {"text": f"{text} {seed}.{i}", "labels": [MEANT[label[0]]]}
        for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Path:
    """A folder with everything that pages speak of."""
    world = tmp_path_factory.mktemp("world")
    (world / "DATA").mkdir()
    for seed, (split, count) in enumerate({"train": 60, "dev": 30, "test": 20}.items()):
        write_lines(world / "DATA" / f"{split}.jsonl", count, seed)
    table = "".join(f"{label.id}\t{'|'.join(label.parents)}\t{label.name}\n" for label in LABELS)
    for name in ("TAXONOMY", "OLD", "NEW", "taxonomy.tsv"):
        (world / name).write_text(f"id\tparents\tname\n{table}")
    (world / "NEW").write_text((world / "NEW").read_text() + "cs.CL\tcs\tComputation and Language\n")
    (world / "texts.csv").write_text("id,text\n" + "".join(f"{i},{' '.join(WORDS['p'])}\n" for i in range(5)))
    rows = [f"{' '.join(WORDS[name])} {i},{area},{name}\n" for i in range(8) for area, name in (("x", "m"), ("y", "p"))]
    (world / "articles.csv").write_text(f"Title,area,topic\n{''.join(rows)}")
    (world / "topics.txt").write_text("x > m\ny > p\n")
    (world / "run.toml").write_text("[train]\nepochs = 2\n")
    for part in ("docs/examples", "examples"):
        shutil.copytree(ROOT / part, world / part)
    (world / "docs/img").mkdir()
    settings: dict[str, Any] = {"encoder": str(tiny_encoder), "pooling": "cls"}
    texts, labels = toy_documents(60, seed=0)
    documents = label_documents(texts, [[MEANT[label[0]]] for label in labels], LABELS)
    for model, out in {"flat": "runs/mine", "hill": "runs/old"}.items():
        decode = {"strategy": "ancestors"}  # as with many documents, so that it can be exported as a plain rule
        groups = {"model": settings, "train": {"epochs": 1}, "decode": decode}
        classifier = HillClassifier(LABELS, model, groups, preset=None)
        for _ in classifier.training({"train": documents}, world / out):
            pass
        classifier.save(world / out)
    shutil.copytree(world / "runs/old", world / "runs/demo")
    shutil.copytree(world / "DATA", world / "runs/demo-data")
    return world


@pytest.fixture
def page_folder(world: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, in which a page runs."""
    monkeypatch.setattr(pretrained, "_find_packaged", lambda name: str(tiny_encoder))
    monkeypatch.chdir(shutil.copytree(world, tmp_path / "page"))
    return tmp_path / "page"


@pytest.mark.usefixtures("page_folder")
@by_name
def test_blocks_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page.read_text()):
        run_block(block, page, names)


@pytest.mark.usefixtures("page_folder")
@by_name
def test_examples_give_what_they_show(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


@by_name
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_page_is_in_the_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w-]+\.md", json.dumps(menu))
    assert sorted(listed) == [page.name for page in PAGES if page.parent.name == "docs"]


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/reference.md").read_text(), re.M)
    found = [pydoc.locate(name) for name in listed]
    assert None not in found, listed
    errors = {name for name in hill.__all__ if name.endswith("Error")}
    assert {name.split(".")[-1] for name in listed} | errors >= set(hill.__all__)


@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="the extra docs is not installed")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "source/hill/models/hill.py").exists(), "pages link to files of the repository"
    assert ">fit</span>" in (tmp_path / "reference.html").read_text()


def test_all_fences_are_seen() -> None:
    for page in PAGES:
        text = page.read_text()
        assert 2 * sum(1 for _ in blocks_of(text)) == len(re.findall("^```", text, re.M)), page.name


WRONG = {
    "```sh\nhill evaluate runs/mine NOTHING\n```\n": "does not exist",
    "```sh\nhill evaluate runs/mine DATA --nonsense\n```\n": "No such option",
    "```sh\nhill demo --nonsense\n```\n": "No such option",
    "<!-- parse: why -->\n```sh\nhill evaluate runs/mine\n```\n": "data",
    "```bash\nhill nonsense\n```\n": "nonsense",
    "```sh\nmake nonsense\n```\n": "nonsense",
    "```sh\npip install -e '.[nonsense]'\n```\n": "nonsense",
    "```sh\npip install 'hill-htc[serve]'\n```\n": "not on a package index",
    "```sh\nwget localhost\n```\n": "a page shows 'wget'",
    "```sh\ncurl localhost -d '{text: 1}'\n```\n": "property name",
    "```sh\nA_KEY=1 hill nonsense\n```\n": "nonsense",
    "```sh\ntorchrun --nproc-per-node 2 -m hill demo --nonsense\n```\n": "No such option",
    "```python\n1 / 0\n```\n": "division by zero",
    "<!-- parse: why -->\n```python\n1 / /\n```\n": "invalid syntax",
    "<!-- parse: -->\n```python\n1 / 0\n```\n": "division by zero",
    "```toml\n[train]\nepoch = 1\n```\n": "epochs",
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.usefixtures("page_folder")
def test_what_is_wrong_is_seen(text: str) -> None:
    (block,) = blocks_of(text)
    with pytest.raises(Exception, match=WRONG[text]):
        run_block(block, Path("page.md"), {})


def test_a_block_that_is_parsed_does_not_run() -> None:
    (block,) = blocks_of("<!-- parse: it is only an example -->\n```python\n1 / 0\n```\n")
    run_block(block, Path("page.md"), {})
