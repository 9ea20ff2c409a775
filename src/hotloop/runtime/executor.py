"""What the engine needs of whoever owns the model's programs and the memory of the pages."""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.bell import Bell
from hotloop.runtime.sampling import Sampling


@dataclass(frozen=True)
class Row:
    """One sequence of a decode launch.

    `tokens` are all so far; the last is not in the cache yet and is what the launch takes in
    first, at position len(tokens) - 1. `prompt` of them were not generated. `table` has the page
    of each position that the launch may write. The row ends with a token of `sampling.stop_ids`,
    or with the one that makes `limit` tokens in all. `bias` (float32 [vocab]) is added to its
    logits.
    """

    tokens: list[int]
    prompt: int
    limit: int
    table: list[int]
    sampling: Sampling
    bias: NDArray[np.float32] | None = None


#: Takes the new tokens of each row, which may be none; returns whether the launch is to go on.
#: It must not call the executor.
Deliver = Callable[[list[list[int]]], bool]


class Executor(Protocol):
    """Programs over a paged cache. One call at a time, all from one thread, but for `look`.

    A token's bits do not depend on which rows a launch has, nor on how its prompt was cut up.
    """

    @property
    def bell(self) -> Bell:
        """Rings when a launch has new tokens."""

    @property
    def page(self) -> int:
        """Positions in a page."""

    @property
    def pages(self) -> int:
        """Pages there are."""

    @property
    def rows(self) -> int:
        """The most sequences that one launch decodes."""

    @property
    def block(self) -> int:
        """The most tokens of a prompt that one call reads."""

    def prefill(
        self,
        tokens: collections.abc.Sequence[int],
        position: int,
        table: collections.abc.Sequence[int],
        head: bool = False,
    ) -> NDArray[np.float32]:
        """Put keys and values of `tokens`, the first at `position`, into the pages of `table`.

        Returns what the model makes of each token, until the next call: its hidden state after the
        final norm, float32 [n, width], or with `head` its logits, float32 [n, vocab].
        """

    def prepare_scoring(self) -> None:
        """Compile what `prefill` with `head` runs, so that it need not. From any thread."""

    def decode(self, rows: collections.abc.Sequence[Row], steps: int, deliver: Deliver) -> None:
        """Generate up to `steps` tokens for every row in one launch.

        Every row gets the same number of tokens, at least one. The launch ends early after the
        token with which any row ends, and at the next one after `deliver` has returned False. It is
        called before the first token, by every `look`, and at the end: everything that was
        generated has been delivered when `decode` returns.
        """

    def look(self) -> None:
        """Deliver what the launch that runs, if any, has by now. From any thread."""

    def logits(self, row: int) -> NDArray[np.float32]:
        """float32 [vocab]: the logits of the last token of a row of the last launch."""

    def copy_page(self, source: int, target: int) -> None:
        """Make page `target` hold what `source` holds."""
