"""Accessibility: keyboard, names and contrast."""

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import classify

TEXT = "cave echo night fur wing"
CONTROLS = {"button", "textbox", "searchbox", "combobox", "slider", "tab", "treeitem", "link", "tree"}
CONTRAST = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const shine = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
    const behind = (node) => {
        if (!node) return [255, 255, 255];
        const [r, g, b, a = 1] = numbers(getComputedStyle(node).backgroundColor);
        const under = a < 1 ? behind(node.parentElement) : [0, 0, 0];
        return [r, g, b].map((part, i) => part * a + under[i] * (1 - a));
    };
    const found = [];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        const named = node.matches("input, textarea, select");
        const seen = node.checkVisibility() && !node.matches(":disabled") && !node.closest(".hidden");
        if (!(own || named) || !seen) continue;
        const [front, back] = [shine(numbers(getComputedStyle(node).color)), shine(behind(node))];
        const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        found.push([ratio, `${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}`]);
    }
    return found;
}"""


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.getAttribute('aria-label')").split(",")[0]


def test_the_tree_with_arrow_keys(page: Page) -> None:
    classify(page, TEXT)
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Tab")
    moves = [
        ("", "Animals"),
        ("ArrowDown", "Mammals"),
        ("ArrowRight", "Bats"),
        ("ArrowLeft", "Mammals"),
        ("ArrowLeft", "Mammals"),
        ("ArrowDown", "Flyers"),
        ("End", "Plants"),
        ("ArrowDown", "Plants"),
        ("Home", "Animals"),
        ("ArrowUp", "Animals"),
        ("f", "Flyers"),
        ("ArrowUp", "Mammals"),
    ]
    for key, name in moves:
        if key:
            page.keyboard.press(key)
        assert focused(page) == name, key
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1
    mammals = page.get_by_role("treeitem", name="Mammals")
    expect(mammals).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(mammals).to_have_attribute("aria-expanded", "true")
    expect(mammals.get_by_role("treeitem")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.locator("#why h2")).to_have_text("Mammals")


def test_the_focus_is_visible(page: Page) -> None:
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Tab")
    row = page.locator("[role=treeitem]:focus > .row")
    assert row.evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_positions_in_the_tree_have_aria_attributes(page: Page) -> None:
    classify(page, TEXT)
    bats = page.get_by_role("treeitem", name="Bats").first
    told = {name: bats.get_attribute(f"aria-{name}") for name in ("level", "posinset", "setsize")}
    assert told == {"level": "3", "posinset": "1", "setsize": "2"}


def test_search_with_the_keyboard(page: Page) -> None:
    page.get_by_role("searchbox").fill("othe")
    expect(page.locator(".hit")).to_have_count(2)
    expect(page.locator("#live")).to_have_text("2 labels found")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#why")).to_contain_text("Animals › Flyers › Others")
    assert focused(page) == "Others"
    page.get_by_role("searchbox").fill("no such label")
    expect(page.locator(".hits")).to_contain_text("No label's name or id contains “no such label”.")


def test_tabs_with_arrow_keys(page: Page) -> None:
    page.locator("#tab-text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#file")).to_be_visible()
    expect(page.locator("#tab-table")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#text")).to_be_visible()


def test_every_control_has_a_name(page: Page) -> None:
    page.select_option("#other", "fewer")
    classify(page, TEXT)
    page.locator(".paths button").first.click()
    page.wait_for_selector("#why .terms")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    found = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    controls = [(role, name) for role, name in found if role in CONTROLS]
    assert {role for role, _ in controls} == CONTROLS
    assert all(name.strip() for _, name in controls), controls
    assert [name for role, name in controls if role == "searchbox"] == [
        f"Find a label of {m}" for m in ("animals", "fewer")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_text(page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    classify(page, TEXT + " leaf")
    page.locator(".paths button").first.click()
    page.wait_for_selector("#why .terms")
    ratios = page.evaluate(CONTRAST)
    page.click("#tab-table")
    ratios += page.evaluate(CONTRAST)
    assert len(ratios) > 40
    assert min(ratios)[0] >= 4.5, min(ratios)


@pytest.mark.parametrize("width", [360, 768])
def test_no_horizontal_scrolling(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.select_option("#other", "hostile")
    classify(page, TEXT + " " + "long" * 60)
    page.locator(".paths button").first.click()
    page.wait_for_selector("#why .terms")
    assert page.locator("#why .text").evaluate("box => box.scrollWidth <= box.clientWidth")
    for tab in ("#tab-text", "#tab-table"):
        page.click(tab)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_on_a_phone_the_explanation_scrolls_into_view_and_back(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    classify(page, TEXT)
    page.locator(".paths button").first.click()
    expect(page.locator("#why h2")).to_be_in_viewport()
    page.click("text=Back to the labels")
    assert focused(page) == "Bats"
