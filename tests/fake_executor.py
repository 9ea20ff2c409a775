"""An executor whose model is a hash of what its cache holds, so that a wrong page is a wrong token.

Each position of each page holds the token that was put there. Decoding reads the whole sequence
back through the page table, and fails where it is not what the row says.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.bell import Bell
from hotloop.runtime.executor import Deliver, Row

NOTHING = -1
#: Numbers in a hidden state.
WIDTH = 6


def next_token(tokens: Sequence[int], vocab: int | Sequence[int]) -> int:
    """What the fake model says after `tokens`: one of so many ids, or of these."""
    drawn = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
    return drawn % vocab if isinstance(vocab, int) else vocab[drawn % len(vocab)]


def continuation(
    prompt: Sequence[int], count: int, vocab: int | Sequence[int], stop_ids: Sequence[int] = ()
) -> list[int]:
    """The tokens that follow `prompt` where nobody disturbs."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(tokens, vocab))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


def hidden_state(tokens: Sequence[int]) -> NDArray[np.float32]:
    """float32 [WIDTH]: what the fake model makes of the last of `tokens`; its length is 1."""
    drawn = np.random.default_rng([*tokens]).normal(size=WIDTH)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


class FakeExecutor:
    """See the module's text. `calls` notes what was asked for, as short texts."""

    def __init__(
        self,
        pages: int = 16,
        page: int = 4,
        rows: int = 3,
        block: int = 8,
        vocab: int = 97,
        says: Sequence[int] | None = None,
        script: Sequence[int] = (),
        pause: float = 0.0,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """`says` are the tokens that it says (None: all); `script`, what it says first.

        Each token, and each block of a prompt, takes `pause` seconds and comes after `before()`.
        """
        self.page, self.pages, self.rows, self.block = page, pages, rows, block
        self.vocab = vocab
        self.says = says or vocab
        self.script = script
        self.pause = pause
        self.before = before
        self.memory = np.full((pages, page), NOTHING)
        self.calls: list[str] = []
        self.bell = Bell()
        self._logits: list[NDArray[np.float32]] = []
        self._looking = threading.Lock()
        self._deliver: Deliver | None = None
        self._new: list[list[int]] = []
        self._goes_on = True

    def prefill(
        self, tokens: Sequence[int], position: int, table: Sequence[int], head: bool = False
    ) -> NDArray[np.float32]:
        assert 0 < len(tokens) <= self.block
        self.calls.append(f"prefill {len(tokens)}")
        self._check(table, position)
        for at, token in enumerate(tokens, position):
            self._write(table, at, token)
        self._work()
        until = range(position + 1, position + len(tokens) + 1)
        values = self._row_logits if head else hidden_state
        return np.array([values(self._read(table, count)) for count in until])

    def prepare_scoring(self) -> None:
        pass

    def decode(self, rows: Sequence[Row], steps: int, deliver: Deliver) -> None:
        assert 0 < len(rows) <= self.rows
        assert steps > 0
        self.calls.append(f"decode {len(rows)} x {steps}")
        self._new, self._deliver, self._goes_on = [[] for _ in rows], deliver, True
        self.look()
        self._generate(rows, steps)
        self.look()
        self._deliver = None

    def _generate(self, rows: Sequence[Row], steps: int) -> None:
        sequences = [list(row.tokens) for row in rows]
        for _ in range(steps):
            new = []
            for row, tokens in zip(rows, sequences, strict=True):
                assert len(tokens) < row.limit
                self._write(row.table, len(tokens) - 1, tokens[-1])
                assert self._read(row.table, len(tokens)) == tokens
                new.append(self._sample(row, tokens))
            self._work()
            for tokens, token in zip(sequences, new, strict=True):
                tokens.append(token)
            self._publish(new)
            ended = any(
                tokens[-1] in row.sampling.stop_ids or len(tokens) >= row.limit
                for row, tokens in zip(rows, sequences, strict=True)
            )
            self._logits = [self._row_logits(tokens[:-1]) for tokens in sequences]
            if ended or not self._goes_on:
                return

    def _work(self) -> None:
        self.before()
        time.sleep(self.pause)

    def has_been_heard(self) -> bool:
        """Whether all tokens have been looked at."""
        return not any(self._new)

    def _publish(self, tokens: Sequence[int]) -> None:
        with self._looking:
            for new, token in zip(self._new, tokens, strict=True):
                new.append(token)
        self.bell.ring()

    def look(self) -> None:
        with self._looking:
            if self._deliver is not None:
                new, self._new = self._new, [[] for _ in self._new]
                self._goes_on = self._deliver(new) and self._goes_on

    def logits(self, row: int) -> NDArray[np.float32]:
        return self._logits[row]

    def copy_page(self, source: int, target: int) -> None:
        self.calls.append("copy")
        self.memory[target] = self.memory[source]

    def _row_logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = np.zeros(self.vocab, np.float32)
        logits[next_token(tokens, self.says)] = 3
        return logits

    def _sample(self, row: Row, tokens: list[int]) -> int:
        made = len(tokens) - row.prompt
        if row.bias is not None:
            return int((self._row_logits(tokens) + row.bias).argmax())
        if made < len(self.script):
            return self.script[made]
        return next_token(tokens, self.says)

    def _check(self, table: Sequence[int], positions: int) -> None:
        assert NOTHING not in self._read(table, positions)

    def _read(self, table: Sequence[int], positions: int) -> list[int]:
        return self.memory[list(table)].reshape(-1)[:positions].tolist()

    def _write(self, table: Sequence[int], position: int, token: int) -> None:
        self.memory[table[position // self.page], position % self.page] = token
