"""Screenshots for the documentation: light, dark, phone, two models, a table, and the Review tab.

Use: python -m tests.browser.screenshots docs/img

The first time it trains two models on the data of the demo (minutes); they are kept in build/screenshots.
"""

import csv
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from hill.classifier import HillClassifier
from hill.data.icd import icd_data, icd_taxonomy
from tests.browser.chromium import open_browser
from tests.browser.conftest import server_address, start_server
from tests.conftest import ROOT

DESK, PHONE = {"width": 1280, "height": 960}, {"width": 375, "height": 740}
VIEWS: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": DESK},
    "page-dark": {"viewport": DESK, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE, "device_scale_factor": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "icd": {"model": "hill", "preset": "fast", "ensemble": False},
    "icd-linear": {"model": "linear"},
}
TABLE = ["Broken wrist after a fall", "Asthma since childhood", "Type 1 diabetes", "Pneumonia, both lungs"]
QUEUE = [
    "Acute appendicitis with pain in the lower right abdomen.",
    "Diabetes with kidney complications and damage to the retina.",
    "Bleeds easily after small injuries and bruises often; has hemophilia, as his uncle does.",
    "Cannot sleep for weeks and feels sad and without hope.",
    "Itching rash on both hands after contact with nickel.",
    "Sudden loss of sight in the left eye.",
]


def make_models(folder: Path) -> list[Path]:
    """The folders of the two models; those that are missing are trained."""
    taxonomy = icd_taxonomy()
    for name, settings in MODELS.items():
        if not (folder / name / "config.json").exists():
            data = icd_data(taxonomy, 25)
            classifier = HillClassifier(taxonomy, **settings)
            classifier.fit({"train": data["train"].sample(6000), "dev": data["dev"].sample(300)}).save(folder / name)
    return [folder / name for name in MODELS]


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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.csv"
        with path.open("w", newline="") as file:
            rows = [[number + 1, TABLE[number % len(TABLE)]] for number in range(96)]
            csv.writer(file).writerows([["id", "note"], *rows])
        page.click("#tab-table")
        page.set_input_files("#file", path)
        page.click("#label-rows")
        page.wait_for_selector("#progress:has-text('96 rows done')", timeout=120_000)


def review_document(page: Page) -> None:
    page.get_by_label("Your name").fill("Ann")
    page.keyboard.press("Enter")
    page.wait_for_selector("#review-title:focus")
    page.keyboard.press("a")
    page.wait_for_selector("#review-progress:has-text('by you')")
    page.wait_for_timeout(500)


def main(out: Path) -> None:
    folders = make_models(ROOT / "build" / "screenshots")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines = [{"id": f"note-{i}", "text": text, "reason": "from the last week"} for i, text in enumerate(QUEUE, 1)]
        (scratch / "queue.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        options = ("--review", str(scratch / "queue.jsonl"))
        servers = [
            start_server(stack, folders, "", scratch / "log"),
            start_server(stack, folders[:1], "", scratch / "review-log", options),
        ]
        for server in servers:
            stack.callback(server.terminate)
        address = server_address(servers[0], scratch / "log")
        browser = stack.enter_context(open_browser())
        for name, context in VIEWS.items():
            page = open_page(browser, address, **context)
            explain_example(page)
            if "phone" in name:
                page.locator(".panel").evaluate("panel => panel.scrollIntoView()")
            page.screenshot(path=out / f"{name}.png", full_page="phone" not in name)
        page = open_page(browser, address, viewport={"width": 1480, "height": 960})
        page.select_option("#other", index=1)
        explain_example(page)
        page.screenshot(path=out / "page-compare.png", full_page=True)
        page = open_page(browser, address, viewport={"width": 1000, "height": 900})
        label_table(page)
        page.screenshot(path=out / "page-table.png")
        review = server_address(servers[1], scratch / "review-log")
        page = open_page(browser, f"{review}/#review", viewport={"width": 1280, "height": 800})
        review_document(page)
        page.screenshot(path=out / "page-review.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
