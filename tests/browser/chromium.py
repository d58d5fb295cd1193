"""The browser: Debian's Chromium or Playwright's own, without a window."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium; the sandbox is off, since it needs privileges that containers lack."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
