"""The web page, driven in headless Chromium where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browsing import visit
from serving import END, LONG, Running, endless, make_executor, running
from waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = pytest.importorskip("playwright.sync_api").expect

ANSWER = "Once upon a time there was a loop.\n<b>It never ended.</b>"


@pytest.fixture
def server() -> Iterator[Running]:
    with running(make_executor(script=[*ANSWER.encode(), END], pause=0.002)) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with visit(browser, server.url, color_scheme="light") as page:
        yield page


def say(page: Page, text: str) -> None:
    """Send `text`, once the answer before it has ended: until then there is no sending."""
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def test_a_conversation(page: Page) -> None:
    say(page, "Tell me a story")
    answer = page.locator(".message.assistant")
    expect(answer).to_have_text(ANSWER)
    expect(page.locator(".message.user")).to_have_text("Tell me a story")
    expect(page.locator(".note")).to_contain_text("tokens, the first after")
    assert float(page.locator("#speed").inner_text()) > 0  # written before the note
    say(page, "And then?")
    expect(answer).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    expect(answer).to_have_count(0)
    expect(page.get_by_label("Your message")).to_be_focused()


def test_an_answer_can_be_stopped(browser: Browser) -> None:
    with endless() as server, visit(browser, server.url, color_scheme="light") as page:
        page.get_by_label("Longest answer").fill(str(LONG))
        answer = page.locator(".message.assistant")
        for count, press in enumerate(
            (
                lambda: page.keyboard.press("Escape"),
                lambda: page.get_by_role("button", name="Stop").click(),
            ),
            1,
        ):
            say(page, "Go on for ever")
            expect(answer).to_have_count(count)
            expect(answer.last).to_have_text(re.compile("..."))
            press()
            expect(page.locator(".note")).to_have_text(["stopped"] * count)


def test_a_new_chat_knows_nothing_of_an_answer_that_was_coming(browser: Browser) -> None:
    with endless() as server, visit(browser, server.url, color_scheme="light") as page:
        page.get_by_label("Longest answer").fill(str(LONG))
        sent: list[dict[str, object]] = []
        page.on("request", lambda made: sent.append(made.post_data_json) if made.post_data else 0)
        for count in (1, 2):
            say(page, "Go on for ever")
            expect(page.locator(".message.assistant")).to_have_text(re.compile("..."))
            page.get_by_role("button", name="New chat").click()
            expect(page.get_by_role("button", name="Send")).to_be_visible()
            expect(page.locator("#log")).to_be_empty()
            wait_until(lambda count=count: len(sent) == count)
        assert [body["messages"] for body in sent] == [
            [{"role": "user", "content": "Go on for ever"}]
        ] * 2


def test_model_and_load_are_in_view(page: Page) -> None:
    expect(page.locator("#model")).to_have_text("tiny")
    expect(page.locator("#limit")).to_have_text("The memory allows 1000 to one stream.")
    expect(page.locator("#pages")).to_contain_text("of 64 pages in use")


def test_errors_are_said(page: Page) -> None:
    say(page, "a" * 2000)
    expect(page.get_by_role("alert")).to_contain_text("shorten it")


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    say(page, "long" * 60)
    expect(page.locator(".message.assistant")).to_have_text(ANSWER)
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width)
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
