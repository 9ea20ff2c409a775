"""The scheduler: what the next launches do, for which sequences. Pure bookkeeping, no clock.

Sequences start in the order of arrival, as soon as there are a row and pages for the whole prompt.
Prompts are read a block at a time, and between two blocks the sequences that are decoding get a few
tokens each, so that no long prompt stalls a running stream. Where decoding runs out of pages, the
sequence that came last is put back: its pages go to the prefix cache, and it starts again when it
can. It then reads its own output as a prompt, which gives the same bits.
"""

from collections import deque
from dataclasses import dataclass, field

from hotloop.runtime.pages import Pages
from hotloop.runtime.sequence import Sequence

#: Tokens of each decoding sequence between two blocks of prompts.
INTERLEAVE = 4


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt: positions start … stop - 1 of `sequence`."""

    sequence: Sequence
    start: int
    stop: int


@dataclass
class Plan:
    """One step: copy pages, then read a chunk, then decode `steps` tokens for every row."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    chunk: Chunk | None = None
    rows: list[Sequence] = field(default_factory=list)
    steps: int = 0


class Scheduler:
    """Sequences that wait and sequences that run, each in the order of arrival.

    `rows` is how many run together, `block` how many tokens of a prompt are read at once.
    """

    def __init__(self, pages: Pages, rows: int, block: int) -> None:
        self.pages = pages
        self.rows = rows
        self.block = block
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._turn = 0

    def add(self, sequence: Sequence) -> None:
        """Let it wait. Its `limit` must fit in the pages, or it waits for ever."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It has ended: all its pages are free, or cached, from now on."""
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._close(sequence)

    def plan(self) -> Plan:
        """The next step. It is empty only where no sequence is left."""
        plan = Plan()
        self._make_room()
        plan.chunk = self._next_chunk(plan)
        plan.rows = [sequence for sequence in self.running if not sequence.reads]
        plan.steps = self._steps(plan)
        return plan

    def read(self, chunk: Chunk) -> None:
        """The chunk's keys and values are there; others may use them from now on."""
        sequence = chunk.sequence
        assert sequence.table is not None
        sequence.computed = chunk.stop
        self.pages.commit(sequence.table, sequence.tokens[: chunk.stop])

    def extend(self, sequence: Sequence, tokens: list[int]) -> None:
        """Decoding gave `tokens`; what comes before the last of them is in the cache."""
        sequence.tokens += tokens
        sequence.computed += len(tokens)

    def _make_room(self) -> None:
        """A position for the next token of every sequence that decodes, the oldest first."""
        for sequence in list(self.running):
            while sequence.table is not None and not sequence.reads:
                if self.pages.extend(sequence.table, len(sequence.tokens)):
                    break
                self._preempt(self.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._close(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _close(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.pages.close(sequence.table, sequence.tokens[: sequence.computed])
        sequence.table, sequence.computed = None, 0

    def _next_chunk(self, plan: Plan) -> Chunk | None:
        """What the chosen sequence reads next; those that have nothing to read start at once."""
        while (sequence := self._choose(plan)) is not None and not sequence.reads:
            pass
        if sequence is None:
            return None
        self._turn += 1
        start = sequence.computed
        return Chunk(sequence, start, min(start + self.block, sequence.goal))

    def _choose(self, plan: Plan) -> Sequence | None:
        """In turns: the one that came first, and the one with the least left to read.

        So a short prompt need not wait for a long one, and the long one still gets every other
        block. The first that waits takes part; it starts, if there is room, when it is chosen.
        """
        reading = [sequence for sequence in self.running if sequence.reads]
        candidates = reading + ([self.waiting[0]] if self._has_row() else [])
        if not candidates:
            return None
        oldest = candidates[0]
        shortest = min(candidates, key=lambda s: len(s.tokens) - s.computed)
        chosen = shortest if self._turn % 2 else oldest
        if chosen.table is None and not self._start(chosen, plan):
            return reading[0] if reading else None
        return chosen

    def _has_row(self) -> bool:
        return bool(self.waiting) and len(self.running) < self.rows

    def _start(self, sequence: Sequence, plan: Plan) -> bool:
        """Give it its pages. One for each that runs is left over: they will need it soon."""
        opened = self.pages.open(sequence.tokens, len(self.running), anew=sequence.listens)
        if opened is None:
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        if len(sequence.tokens) == sequence.prompt:
            sequence.cached = opened.cached
        sequence.table, sequence.computed = opened.table, opened.cached
        if opened.copy is not None:
            plan.copies.append(opened.copy)
        return True

    def _steps(self, plan: Plan) -> int:
        """Tokens of one launch: few where a prompt waits for its next block, else all that fit.

        Pages for them are taken where they are free, and nobody is put back for them.
        """
        if not plan.rows:
            return 0
        if any(sequence.single for sequence in plan.rows):
            return 1
        steps = self.pages.size if plan.chunk is None else INTERLEAVE
        for sequence in plan.rows:
            assert sequence.table is not None
            taken = len(sequence.tokens) - 1
            wanted = min(steps, sequence.limit - len(sequence.tokens))
            self.pages.extend(sequence.table, taken + wanted)
            steps = min(steps, len(sequence.table.pages) * self.pages.size - taken)
        return steps
