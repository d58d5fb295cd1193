"""Labels and texts that look like HTML stay text, and the page asks for the key."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import KEY, classify, open_at
from tests.browser.taxonomies import FORMULA, IMAGE, SCRIPT

PAGE = "hill: text into a taxonomy"


@pytest.fixture
def hostile(page: Page) -> Page:
    page.select_option("#model", "hostile")
    expect(page.get_by_role("treeitem", name=IMAGE)).to_be_visible()
    return page


def test_labels_and_texts_that_look_like_html_stay_text(hostile: Page) -> None:
    classify(hostile, f"{SCRIPT} alpha {IMAGE} beta")
    hostile.locator(".paths button").first.click()
    hostile.wait_for_selector("#why .terms")
    expect(hostile.locator("#why h2")).to_have_text(FORMULA)
    expect(hostile.locator("#why .description")).to_have_text(f"Described by {SCRIPT}")
    expect(hostile.locator("#why .text")).to_have_text(f"{SCRIPT} alpha {IMAGE} beta")
    expect(hostile.locator(".tree")).to_contain_text(IMAGE)
    hostile.get_by_role("searchbox").fill("<img")
    expect(hostile.locator(".hit")).to_contain_text(IMAGE)
    assert hostile.title() == PAGE
    assert hostile.locator("main script, main img, #why img").count() == 0


def test_ids_with_special_characters_are_found(hostile: Page) -> None:
    classify(hostile, "gamma delta")
    hostile.locator(".paths button").first.click()
    expect(hostile.locator("#why .muted").first).to_contain_text("a/b?c#d%20")
    hostile.wait_for_selector("#why .terms")


def test_the_policy_refuses_inline_scripts(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["Content Security Policy"]
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'broken'";
        document.body.append(script);
    }""")
    assert page.title() == PAGE


def test_the_page_asks_for_the_key_once(blank: Page, large: str, expected_errors: list[str]) -> None:
    expected_errors += ["status of 401"]
    blank.goto(large)
    expect(blank.get_by_role("dialog")).to_be_visible()
    expect(blank.locator("#key-field")).to_be_focused()
    blank.fill("#key-field", "a wrong key")
    blank.click("text=Use this key")
    expect(blank.locator("#key-refused")).to_be_visible()
    blank.fill("#key-field", KEY)
    blank.keyboard.press("Enter")
    blank.wait_for_selector("body.ready")
    expect(blank.get_by_role("dialog")).to_have_count(0)
    open_at(blank, large)
    expect(blank.get_by_role("treeitem")).to_have_count(20)


def test_without_a_key_the_page_shows_an_error(blank: Page, large: str, expected_errors: list[str]) -> None:
    expected_errors += ["status of 401"]
    blank.goto(large)
    expect(blank.get_by_role("dialog")).to_be_visible()
    blank.keyboard.press("Escape")
    expect(blank.locator("#trouble")).to_have_text("This server requires an API key.")
