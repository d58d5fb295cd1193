"""Reports and explanations in the browser: no content of labels and texts runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from hill.classifier import HillClassifier
from tests.browser.conftest import classify, open_at
from tests.test_security import HOSTILE, hostile, pages

SCRIPT = "(() => { window.alert = () => { document.title = 'broken' } })()"
__all__ = ["hostile"]


@pytest.fixture
def watched(context: BrowserContext) -> Iterator[tuple[Page, list[str]]]:
    """A page, and a list of its requests and console messages."""
    page, told = context.new_page(), []
    page.add_init_script(SCRIPT)
    page.on("request", lambda request: None if request.url.startswith("file:") else told.append(request.url))
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    yield page, told
    page.close()


@pytest.mark.parametrize("name", ["explanation", "report", "experiment"])
def test_a_page_of_hostile_labels_runs_nothing(
    name: str, hostile: HillClassifier, watched: tuple[Page, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(pages(hostile)[name][0], encoding="utf-8")
    page, told = watched
    page.goto((tmp_path / "page.html").as_uri())
    title = page.title()
    assert "<script>alert(1)</script>" in page.inner_text("body")
    assert page.locator("img, iframe, a[href^='javascript']").count() == 0
    assert page.evaluate("document.scripts.length") == pages(hostile)[name][1]
    page.locator("button, label").evaluate_all("all => all.forEach(one => one.click())")
    assert page.title() == title != "broken" and told == []


def test_a_hostile_page_is_detected(watched: tuple[Page, list[str]], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<title>x</title><p>{HOSTILE}</p>", encoding="utf-8")
    watched[0].goto((tmp_path / "page.html").as_uri())
    assert watched[0].title() == "broken"


def test_a_hostile_text_runs_nothing_on_the_served_page(blank: Page, address: str) -> None:
    blank.add_init_script(SCRIPT)
    page = open_at(blank, address)
    page.select_option("#model", "hostile")
    classify(page, f"alpha beta {HOSTILE}")
    page.locator(".paths button").first.click()
    page.wait_for_selector("#why .terms")
    assert "<script>alert(1)</script>" in page.inner_text("#why .text")
    assert page.title() != "broken" and page.locator("main script, main img").count() == 0
