"""50,000 labels: the first view, the search and a prediction each take only seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import KEY, classify

PATIENCE = 5.0
"""Seconds per step on a busy machine; on an idle machine each takes much less than one."""


@contextmanager
def soon() -> Iterator[None]:
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < PATIENCE


@pytest.fixture
def page(blank: Page) -> Page:
    blank.add_init_script(f"sessionStorage.setItem('hill-api-key', '{KEY}')")
    return blank


def test_many_labels(page: Page, large: str) -> None:
    with soon():
        page.goto(large)
        expect(page.get_by_role("treeitem")).to_have_count(20)
    page.wait_for_selector("body.ready")
    with soon():
        page.get_by_role("searchbox").press_sequentially("topic 43999")
        expect(page.locator(".hit").first).to_contain_text("Topic 43999 of things")
    with soon():
        page.locator(".hit").first.click()
        expect(page.get_by_role("treeitem", name="Topic 43999 of things")).to_be_focused()
    with soon():
        classify(page, "leaf root")
        expect(page.get_by_role("treeitem", name="Wide 4900")).to_be_visible()
    assert page.get_by_role("treeitem").count() < 400, "long lists come by the page"


def test_a_long_list_is_shown_page_by_page(page: Page, large: str) -> None:
    page.goto(large)
    classify(page, "leaf root")
    below = page.get_by_role("treeitem", name="Field 979").get_by_role("treeitem")
    expect(below).to_have_count(102)
    expect(below.first).to_have_attribute("aria-setsize", "5000")
    expect(below.first).to_contain_text("Wide 4900")
    expect(below.last).to_have_text("Show 100 more of 4,900")
    below.last.focus()
    page.keyboard.press("Enter")
    expect(below).to_have_count(202)
    expect(below.nth(101)).to_be_focused()
    expect(below.nth(101)).to_contain_text("Wide 100")
