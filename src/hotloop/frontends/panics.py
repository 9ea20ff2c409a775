"""The `tokenizers` library panics where it meets a fault that it does not expect.

What it raises then has no name to import and is no `Exception`, so it would end a server's thread.
Known causes: a `tokenizer.json` whose merges make no token, or whose template has one that it does
not name, and a regular expression that gives up after ten million steps back.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from hotloop.util.errors import HotloopError, UsageError


@contextmanager
def panics_as(error: HotloopError) -> Iterator[None]:
    """Raise `error` where the library panics in the block."""
    try:
        yield
    except BaseException as found:
        if type(found).__name__ != "PanicException":
            raise
        raise error from None


def no_words(text: str) -> HotloopError:
    """The error for a text at which a tokenizer's regular expression gives up."""
    return UsageError(
        f"the text of {len(text)} characters cannot be cut into words (the tokenizer's regular "
        "expression takes too long); give it in shorter pieces."
    )
