"""The collector rests while objects are made, and takes at the end what was left in cycles."""

import gc
import weakref

import pytest

from hotloop.util.collector import collected_once


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_cycles_go_at_the_end() -> None:
    with collected_once():
        assert not gc.isenabled()
        left = weakref.ref(Cycle())
        assert left() is not None
    assert gc.isenabled()
    assert left() is None


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError), collected_once():
        raise KeyError
    assert gc.isenabled()


def test_whoever_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collected_once(), collected_once():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
