"""Screenshots for the documentation, from a running server: light, dark, phone, two models, a table.

From a server with a queue (`hill serve MODEL --review queue.jsonl`) it makes that of the Review tab instead.

Use: python -m tests.browser.screenshots http://127.0.0.1:8000 docs/img
"""

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import open_browser

DESK, PHONE = {"width": 1280, "height": 960}, {"width": 360, "height": 740}
VIEWS: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": DESK},
    "page-dark": {"viewport": DESK, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE, "device_scale_factor": 2},
}


def open_page(browser: Browser, address: str, **context: Any) -> Page:
    page = browser.new_context(**context).new_page()
    page.goto(address)
    page.wait_for_selector("body.ready")
    return page


def explain_example(page: Page) -> None:
    page.click("#example")
    expect(page.locator(".paths")).to_have_count(page.locator(".panel").count(), timeout=60_000)
    page.locator(".paths button").first.click()
    page.wait_for_selector("#why .terms", timeout=60_000)
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)  # bars grow


def label_table(page: Page) -> None:
    text = page.input_value("#text")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "papers.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "abstract"], *([number, text] for number in range(96))])
        page.click("#tab-table")
        page.set_input_files("#file", path)
        page.click("#label-rows")
        page.wait_for_selector("#progress:has-text('32 of')", timeout=120_000)


def review_document(browser: Browser, address: str, out: Path) -> None:
    page = open_page(browser, f"{address}/#review", viewport={"width": 1280, "height": 800})
    page.get_by_label("Your name").fill("Ann")
    page.keyboard.press("Enter")
    page.wait_for_selector("#review-title:focus")
    page.keyboard.press("a")
    page.wait_for_selector("#review-progress:has-text('by you')")
    page.wait_for_timeout(500)
    page.screenshot(path=out / "page-review.png")


def main(address: str, out: Path) -> None:
    with open_browser() as browser:
        if open_page(browser, address).is_visible("#tab-review"):
            return review_document(browser, address, out)
        for name, context in VIEWS.items():
            page = open_page(browser, address, **context)
            explain_example(page)
            if "phone" in name:
                page.locator(".panel").evaluate("panel => panel.scrollIntoView()")
            page.screenshot(path=out / f"{name}.png", full_page="phone" not in name)
        page = open_page(browser, address, viewport={"width": 1480, "height": 960})
        if page.is_visible("#other"):
            page.select_option("#other", index=1)
            explain_example(page)
            page.screenshot(path=out / "page-compare.png", full_page=True)
        page.set_viewport_size({"width": 1000, "height": 900})
        explain_example(page)
        label_table(page)
        page.screenshot(path=out / "page-table.png")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
