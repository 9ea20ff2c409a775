"""Pages in headless Chromium, for tests.

A browser does what an action asks for when it comes to it: events such as `toggle` are queued,
pictures are drawn with the next frame. So nothing is asked once after an action: locators are
asked by `expect`, anything else by `wait_until`; both wait.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

MS = 1000 * PATIENCE


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser. Skips the test where there is none, or nothing to drive it with."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = next(found, None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    playwright.expect.set_options(timeout=MS)
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=MS)
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser: Browser, url: str, *, silent: bool = False, **options: object) -> Iterator[Page]:
    """The page at `url`, which may ask nobody but its own site and may make no mistake.

    Neither may the browser complain of it, other than of answers that are errors. A `silent` one
    may have nothing at all written to the console; `options` are those of a browser context.
    """
    asked: list[str] = []
    wrong: list[str] = []
    with browser.new_context(**options) as context:
        context.set_default_timeout(MS)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def note(message: ConsoleMessage) -> None:
            answered = message.text.startswith("Failed to load resource")
            if silent or (message.type == "error" and not answered):
                wrong.append(message.text)

        page.on("console", note)
        page.goto(url)
        yield page
    assert all(target.startswith((url, "data:")) for target in asked), asked
    assert wrong == [], wrong
