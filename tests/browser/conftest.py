"""A real browser and real servers with small models."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from playwright.sync_api import BrowserContext, Page, expect

from hill.classifier import HillClassifier
from hill.taxonomy import Taxonomy
from tests.browser.chromium import open_browser
from tests.browser.taxonomies import HOSTILE, IMAGE, PREDICTED, hostile_taxonomy, large_taxonomy
from tests.conftest import animals_taxonomy, toy_documents

KEY = "a key of this test"
PLAIN = {"decode": {"strategy": "closure", "tune": "off", "calibrate": "off", "threshold": 0.5}}
expect.set_options(timeout=30_000)


@dataclass(frozen=True)
class Models:
    """Trained models and their folders."""

    animals: HillClassifier
    fewer: HillClassifier
    folders: dict[str, Path]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Models:
    folder = tmp_path_factory.mktemp("models")
    classifiers = {
        "animals": _fit(animals_taxonomy(), *toy_documents(96, 1)),
        "fewer": _fit(animals_taxonomy(), *toy_documents(24, 2)),
        "hostile": _fit(hostile_taxonomy(), *HOSTILE),
        "large": _make_large(tiny_encoder),
    }
    for name, classifier in classifiers.items():
        classifier.save(folder / name)
    return Models(classifiers["animals"], classifiers["fewer"], {name: folder / name for name in classifiers})


def _fit(taxonomy: Taxonomy, texts: list[str], labels: list[list[str]]) -> HillClassifier:
    return HillClassifier(taxonomy, "linear", PLAIN, preset=None).fit(texts, labels)


def _make_large(encoder: Path) -> HillClassifier:
    """A model that predicts the same few of very many labels for every text."""
    settings = PLAIN | {"model": {"encoder": str(encoder)}, "train": {"epochs": 1}}
    classifier = HillClassifier(large_taxonomy(), "flat", settings, preset=None).fit(
        ["leaf root", "wing sky"], [["t5"], ["t6"]]
    )
    with torch.no_grad():
        bias = classifier.stored.model.head.bias
        bias.fill_(-5)
        bias[torch.from_numpy(classifier.taxonomy.encode(PREDICTED))] = 5
    return classifier


@pytest.fixture(scope="session")
def servers(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two servers, started at the same time: one of three small models, and one of the large model, with a key."""
    small = [models.folders[name] for name in ("animals", "fewer", "hostile")]
    logs = [tmp_path_factory.mktemp("logs") / name for name in ("small", "large")]
    with ExitStack() as stack:
        started = [
            start_server(stack, small, "", logs[0]),
            start_server(stack, [models.folders["large"]], KEY, logs[1]),
        ]
        yield list(map(server_address, started, logs))
        for process in started:
            process.terminate()


@pytest.fixture
def address(servers: list[str]) -> str:
    """Two models of animals, and one with labels that look like HTML and formulas."""
    return servers[0]


@pytest.fixture
def large(servers: list[str]) -> str:
    """One model with 50,000 labels; requests need the key."""
    return servers[1]


def start_server(
    stack: ExitStack, folders: list[Path], key: str, log: Path, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hill", "serve", *map(str, folders), "--port", "0", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HILL_API_KEY": key}
    file = stack.enter_context(log.open("w"))
    return stack.enter_context(subprocess.Popen(command, env=environment, stderr=file))


@pytest.fixture(scope="session")
def reviews(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, Path]]]:
    """Two servers with a queue, one long and one short: the address and the answers file of each."""
    with ExitStack() as stack:
        started, folders = [], [tmp_path_factory.mktemp(name) for name in ("long", "short")]
        for folder, count in zip(folders, (60, 2), strict=True):
            texts, _ = toy_documents(count, 5)
            lines = [{"id": f"d{i}", "text": f"{text} {i}.", "reason": "uncertain"} for i, text in enumerate(texts)]
            lines[0] |= {"text": f"{IMAGE} wing", "labels": ["fo"]}
            (folder / "queue.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            options = ("--review", str(folder / "queue.jsonl"))
            started.append(start_server(stack, [models.folders["animals"]], "", folder / "log", options))
        yield [
            (server_address(process, folder / "log"), folder / "answers.sqlite")
            for process, folder in zip(started, folders, strict=True)
        ]
        for process in started:
            process.terminate()


def server_address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of a server, from the first line of its log."""
    for _ in range(1200):
        assert process.poll() is None, "hill serve ended before it was ready"
        if "\n" in (lines := log.read_text()):
            return str(json.loads(lines.splitlines()[0])["url"])
        time.sleep(0.1)
    pytest.fail("hill serve was not ready within two minutes")


@pytest.fixture(scope="session")
def context() -> Iterator[BrowserContext]:
    """One context for all tests; pages share the cache."""
    with open_browser() as browser:
        yield browser.new_context(viewport={"width": 1280, "height": 900})


@pytest.fixture
def expected_errors() -> list[str]:
    """Patterns of expected console messages of this test, such as a request that must fail."""
    return []


@pytest.fixture
def blank(context: BrowserContext, expected_errors: list[str]) -> Iterator[Page]:
    """An empty page; the test fails if its console has an unexpected error."""
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append("a dialog opened"), dialog.dismiss()))
    yield page
    page.close()
    assert not [text for text in errors if not any(re.search(pattern, text) for pattern in expected_errors)]


@pytest.fixture
def page(blank: Page, address: str) -> Page:
    """The page with the animals, loaded."""
    return open_at(blank, address)


def open_at(page: Page, address: str) -> Page:
    page.goto(address)
    page.wait_for_selector("body.ready")
    return page


def classify(page: Page, text: str) -> None:
    """Enter a text and wait for the prediction."""
    with page.expect_response("**/v1/predict"):
        page.fill("#text", text)
    expect(page.locator(".panel").first).not_to_have_attribute("aria-busy", "true")
    page.wait_for_selector(".paths button, .state p")
