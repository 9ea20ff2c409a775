"""Stop strings, wherever the tokens cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.serve.stops import StopFinder


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """What should be left of `text`: all before the first place where a stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [text[:end].find(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_any_cut_of_the_text_gives_the_same(parts: list[str], stops: list[str]) -> None:
    one_by_one = StopFinder(stops)
    out = "".join(one_by_one.push(character) for character in "".join(parts))
    if not one_by_one.stopped:
        out += one_by_one.flush()
    assert (out, one_by_one.stopped) == cut("".join(parts), stops)


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.text("abc", min_size=1, max_size=5))
def test_in_pieces_with_one_stop(parts: list[str], stop: str) -> None:
    finder = StopFinder([stop])
    out = ""
    for part in parts:
        out += finder.push(part)
        assert stop not in out
    text = "".join(parts)
    out += "" if finder.stopped else finder.flush()
    assert out == text.split(stop)[0]
    assert finder.stopped == (stop in text)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (["Hello", " wor"], ["Hello", " wor"]),
        (["one\n", "\ntwo"], ["one", ""]),  # the newline might have been the first of two
        (["one\n", "two"], ["one", "\ntwo"]),
        (["one\n\ntwo"], ["one"]),
    ],
)
def test_what_may_begin_a_stop_string_is_held_back(parts: list[str], shown: list[str]) -> None:
    finder = StopFinder(["\n\n"])
    assert [finder.push(part) for part in parts] == shown


def test_nothing_comes_after_the_stop() -> None:
    finder = StopFinder(["x"])
    assert [finder.push("axb"), finder.push("c")] == ["a", ""]
    assert finder.stopped
