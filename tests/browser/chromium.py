"""A headless browser: the installed Chromium, or that of Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium. The sandbox is off, because it needs privileges that containers lack."""
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield browser
        browser.close()
