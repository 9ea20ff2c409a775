"""The web page, driven in headless Chromium where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from serving import END, Running, make_executor, running

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

ANSWER = "Once upon a time there was a loop.\n<b>It never ended.</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[Running]:
    with running(make_executor(script=[*ANSWER.encode(), END], pause=0.002)) as server:
        yield server


@pytest.fixture
def page(browser: playwright.Browser, server: Running) -> Iterator[playwright.Page]:
    """The page, which must ask nobody else and make no mistake."""
    with browser.new_context(color_scheme="light") as context:
        context.set_default_timeout(10_000)
        page = context.new_page()
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(server.url)
        yield page
        assert all(url.startswith((server.url, "data:")) for url in asked), asked
        assert not wrong


def say(page: playwright.Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def test_a_conversation(page: playwright.Page) -> None:
    say(page, "Tell me a story")
    answer = page.locator(".message.assistant")
    playwright.expect(answer).to_have_text(ANSWER)
    playwright.expect(page.locator(".message.user")).to_have_text("Tell me a story")
    playwright.expect(page.locator(".note")).to_contain_text("tokens, the first after")
    assert float(page.locator("#speed").inner_text()) > 0
    say(page, "And then?")
    playwright.expect(answer).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    playwright.expect(answer).to_have_count(0)
    playwright.expect(page.get_by_label("Your message")).to_be_focused()


def test_an_answer_can_be_stopped(page: playwright.Page, server: Running) -> None:
    server.executor.script = [*b"x" * 400]
    server.executor.pause = 0.01
    for press in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.get_by_role("button", name="Stop").click(),
    ):
        say(page, "Go on for ever")
        playwright.expect(page.locator(".message.assistant").last).to_contain_text("xxx")
        press()
        playwright.expect(page.get_by_role("button", name="Send")).to_be_visible()
    playwright.expect(page.locator(".note").last).to_have_text("stopped")


def test_model_and_load_are_in_view(page: playwright.Page) -> None:
    playwright.expect(page.locator("#model")).to_have_text("tiny")
    playwright.expect(page.locator("#limit")).to_have_text("The memory allows 1000 to one stream.")
    playwright.expect(page.locator("#pages")).to_contain_text("of 64 pages in use")


def test_errors_are_said(page: playwright.Page) -> None:
    say(page, "a" * 2000)
    playwright.expect(page.get_by_role("alert")).to_contain_text("shorten it")


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_sticks_out(page: playwright.Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    say(page, "long" * 60)
    playwright.expect(page.locator(".message.assistant")).to_have_text(ANSWER)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    playwright.expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
