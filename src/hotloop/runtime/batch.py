"""Batch: a model's programs over a paged cache, for several sequences in one launch.

Two decode programs, for one sequence and for up to `rows`, and one that reads prompts share the
weights, the cache and the threads; so does a third, if one is wanted, that guesses the tokens of
one sequence. A token's bits are the same in all of them, alone or in company: each row of a step is
computed by itself, and attention sums by position.
"""

import operator
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.executable import Executable, SequenceState, Weights
from hotloop.backends.cpu.team import Team
from hotloop.compiler import compile_graph
from hotloop.frontends.decoder import Decoder, Step
from hotloop.ir.ops.speculation import NONE
from hotloop.ir.types import CONTROL
from hotloop.machine.host import host
from hotloop.runtime.bell import Bell
from hotloop.runtime.executor import Deliver, Row
from hotloop.runtime.session import PROMPT_BLOCK


class BatchExecutor:
    """The engine's executor (`runtime.executor.Executor`) on a model's weights and threads.

    `step` says context and activations; `rows` sequences at most are decoded together, and the
    cache has `pages` pages for all of them. A sequence that is alone has up to `speculate` tokens
    guessed and checked in a pass.
    """

    def __init__(
        self,
        decoder: Decoder,
        step: Step,
        schedule: str,
        weights: Weights,
        team: Team,
        rows: int,
        pages: int,
        speculate: int = 0,
    ) -> None:
        self.rows = rows
        self.pages = pages
        self.page = step.page
        self.block = PROMPT_BLOCK
        self._decoder = decoder
        self._step = replace(step, cache_pages=pages)
        self._schedule = schedule
        self._speculate = speculate
        self._weights = weights
        self._team = team
        widest = decoder.graph(self._decode_step(rows))
        self._state = SequenceState(widest)
        self._caches = [s.name for s in widest.states if s.name not in ("ring", "control", "bias")]
        self._ring = self._state.view("ring")
        self._control = self._state.view("control").view(CONTROL)
        self._bias = self._state.view("bias")
        self._published = _Published(self._control, self._ring)
        self.bell = Bell()
        self._control["bell"] = self.bell.address
        self._running: _Running | None = None
        self._looking = threading.Lock()
        self._last: Executable | None = None
        self._compiling = threading.Lock()

    def _decode_step(self, rows: int) -> Step:
        return replace(self._step, tokens=rows, batch=True)

    def _executable(self, step: Step) -> Executable:
        graph = self._decoder.graph(step)
        compiled = compile_graph(graph, host(self._team.threads), self._schedule)
        return Executable(compiled.program, self._weights, self._state, self._team)

    @cached_property
    def _one(self) -> Executable:
        return self._executable(self._decode_step(1))

    @cached_property
    def _guessing(self) -> Executable:
        return self._executable(replace(self._step, tokens=1 + self._speculate, speculates=True))

    @cached_property
    def _many(self) -> Executable:
        return self._executable(self._decode_step(self.rows))

    @cached_property
    def _prompt(self) -> Executable:
        return self._executable(replace(self._step, tokens=PROMPT_BLOCK, head=False))

    @cached_property
    def _scoring(self) -> Executable:
        return self._executable(replace(self._step, tokens=PROMPT_BLOCK))

    def compile(self) -> None:
        """Make all programs that generate, so that no client waits for machine code.

        They are all begun before any is waited for: LLVM compiles one while the next is traced.
        """
        programs = [
            self._prompt,
            self._one,
            *([self._guessing] if self._speculate else []),
            *([self._many] if self.rows > 1 else []),
        ]
        for program in programs:
            program.wait()

    def prepare_scoring(self) -> None:
        with self._compiling:
            self._scoring.wait()

    def prefill(
        self, tokens: Sequence[int], position: int, table: Sequence[int], head: bool = False
    ) -> NDArray[np.float32]:
        program = self._scoring if head else self._prompt
        program.view("token")[: len(tokens)] = tokens
        program.view("pos")[0] = position
        program.view("pages")[0, : len(table)] = table
        program.run(len(tokens))
        (values,) = program.program.outputs
        return program.view(values)[: len(tokens)].astype(np.float32, copy=False)

    def decode(self, rows: Sequence[Row], steps: int, deliver: Deliver) -> None:
        program = self._ready(rows, steps)
        self._running = _Running([len(row.tokens) for row in rows], deliver)
        self.look()  # somebody may have come before there was a launch to end
        try:
            program.run(len(rows), until_done=True)
            self.look()
        finally:
            self._running = None

    def look(self) -> None:
        with self._looking:
            if (running := self._running) is None:
                return
            starts, delivered = running.starts, running.delivered
            # Rows are published one after another: a step is there when it is for all of them.
            there = min(map(operator.sub, self._published.seen(len(starts)), starts))
            new = [
                self._published.tokens(at, start + delivered, start + there)
                for at, start in enumerate(starts)
            ]
            running.delivered = there
            if not running.deliver(new):
                self._control["cancel"][0] = 1

    def time_decode(self, rows: Sequence[Row], steps: int) -> float:
        """Seconds that `steps` tokens of every row take, while nobody looks at them."""
        program = self._ready(rows, steps)
        program.wait()
        started = time.perf_counter()
        program.run(len(rows), until_done=True)
        return time.perf_counter() - started

    def _ready(self, rows: Sequence[Row], steps: int) -> Executable:
        """The program for so many rows, with everything that it reads."""
        self._last = program = self._program(rows, steps)
        program.view("token")[:] = NONE
        for at, row in enumerate(rows):
            self._place(program, at, row, steps)
        return program

    def _program(self, rows: Sequence[Row], steps: int) -> Executable:
        """A bias is for each token, and logits are wanted of the last one: neither goes with
        guesses, of which there are none where one token is asked for."""
        if len(rows) > 1:
            return self._many
        guesses = self._speculate and steps > 1 and rows[0].bias is None
        return self._guessing if guesses else self._one

    def _place(self, program: Executable, at: int, row: Row, steps: int) -> None:
        """Everything that a launch reads of row number `at`."""
        last = len(row.tokens) - 1
        program.view("token")[at] = row.tokens[-1]
        program.view("pos")[at] = last
        program.view("pages")[at, : len(row.table)] = row.table
        self._ring[at, : last + 1] = row.tokens
        control = self._control[at : at + 1]
        row.sampling.write(control, row.prompt, row.bias is not None)
        if row.bias is not None:
            self._bias[at] = row.bias
        control[0]["published"] = last + 1
        control[0]["last_pos"] = min(last + steps, row.limit - 1)

    def logits(self, row: int) -> NDArray[np.float32]:
        assert self._last is not None, "nothing has been decoded"
        return np.array(self._last.view("logits")[row], np.float32)

    def copy_page(self, source: int, target: int) -> None:
        for name in self._caches:
            cache = self._state.view(name)
            cache[target] = cache[source]

    def close(self) -> None:
        """Give back the bell; the executor can no longer be used."""
        self.bell.close()


@dataclass
class _Running:
    """A launch: how many tokens each row had before, and how many each has been given."""

    starts: list[int]
    deliver: Deliver
    delivered: int = 0


class _Published:
    """What a launch has published so far, looked at without NumPy: between two tokens the weights
    empty the caches, and every line of code that runs there comes from memory."""

    def __init__(self, control: NDArray[np.generic], ring: NDArray[np.generic]) -> None:
        assert CONTROL.fields is not None
        self._words = control.view(np.int64).reshape(-1).data
        self._stride = CONTROL.itemsize // self._words.itemsize
        self._offset = CONTROL.fields["published"][1] // self._words.itemsize
        self._tokens = ring.reshape(-1).data
        self._width = ring.shape[1]

    def seen(self, rows: int) -> list[int]:
        """Tokens of each row, its prompt's included."""
        return self._words[self._offset : rows * self._stride : self._stride].tolist()

    def tokens(self, row: int, start: int, stop: int) -> list[int]:
        base = row * self._width
        return self._tokens[base + start : base + stop].tolist()
