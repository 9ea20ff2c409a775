"""The engine: requests join and leave while a thread of its own makes steps.

A step is *schedule, run, postprocess*. What other threads ask for waits in a mailbox that is
emptied between steps; a launch ends at its next token once something is there. So a request
that comes, or goes, waits for a token or two, and everything else happens on one thread.

While a launch runs, that thread is in machine code. The launch's tokens are handed out by whoever
hears the bell and calls `look`: the thread that wants them, so that no other need wake for them.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.bell import Bell
from hotloop.runtime.executor import Executor, Row
from hotloop.runtime.logprobs import top_logprobs
from hotloop.runtime.pages import Pages
from hotloop.runtime.scheduler import Chunk, Plan, Scheduler
from hotloop.runtime.sequence import ConstraintError, Finish, Output, Sequence, Sink, TopLogprobs
from hotloop.util.errors import ContextError, HotloopError, UsageError


class QueueFullError(HotloopError):
    """More requests wait than the engine is told to take."""


class ClosedError(HotloopError):
    """The engine has been closed, or has failed; the message says how."""


@dataclass(frozen=True)
class Load:
    """What the engine has to do, and what it has done, at one moment."""

    running: int
    waiting: int
    pages_free: int
    pages_cached: int
    pages: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Engine:
    """Runs sequences on an executor. `queue` is how many may wait for a row; more are refused."""

    def __init__(self, executor: Executor, queue: int) -> None:
        self.executor = executor
        self.queue = queue
        self._pages = Pages(executor.pages, executor.page)
        self._scheduler = Scheduler(self._pages, executor.rows, executor.block)
        self._mailbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._alive: set[Sequence] = set()
        self._closed = ""  # why nothing more is taken
        self._stopping = False
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._thread = threading.Thread(target=self._serve, name="hotloop-engine", daemon=True)

    # from any thread

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequences: list[Sequence]) -> None:
        """Take all of `sequences` or none of them.

        Raises `ContextError` where one could never fit, `UsageError` where so many could not,
        `QueueFullError` where too many wait now, and `ClosedError` where the engine takes nothing
        any more.
        """
        for sequence in sequences:
            positions = max(sequence.prompt, sequence.limit - 1)
            if self._pages.needed(positions) > self._pages.count:
                raise ContextError(
                    f"{sequence.limit} tokens do not fit in the KV cache, which holds "
                    f"{self._pages.count * self._pages.size}; shorten the prompt or max_tokens."
                )
        most = self.executor.rows + self.queue
        if len(sequences) > most:
            raise UsageError(
                f"{len(sequences)} sequences in one request; this server takes {most} in all."
            )
        with self._wake:
            if self._closed:
                raise ClosedError(self._closed)
            if len(self._alive) + len(sequences) > most:
                raise QueueFullError(
                    f"{max(0, len(self._alive) - self.executor.rows)} requests are waiting and "
                    f"{self.queue} may; try again later."
                )
            self._alive.update(sequences)
            for sequence in sequences:
                self._mailbox.append(partial(self._scheduler.add, sequence))
            self._wake.notify()
        self.executor.look()

    def cancel(self, sequences: list[Sequence]) -> None:
        """End them at their next token; their sinks are not called again after that one."""
        with self._wake:
            for sequence in sequences:
                self._mailbox.append(partial(self._end, sequence, Finish.CANCELLED))
            self._wake.notify()
        self.executor.look()

    @property
    def bell(self) -> Bell:
        """Rings when `look` has something to hand out."""
        return self.executor.bell

    def look(self) -> None:
        """Hand the tokens that a running launch has made to their sinks."""
        self.executor.bell.silence()
        self.executor.look()

    def load(self) -> Load:
        """A picture for people and metrics; its numbers are of about the same moment."""
        scheduler, pages = self._scheduler, self._pages
        running = len(scheduler.running)
        return Load(
            running=running,
            waiting=max(0, len(self._alive) - running),
            pages_free=pages.available,
            pages_cached=pages.cached,
            pages=pages.count,
            preemptions=scheduler.preemptions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
        )

    @property
    def failure(self) -> str:
        """Why it takes nothing any more; empty while it does."""
        return self._closed

    def close(self, grace: float = 0.0) -> None:
        """Take nothing more, let what runs finish for `grace` seconds, then cancel the rest."""
        with self._wake:
            self._closed = self._closed or "the server is shutting down."
            self._wake.wait_for(lambda: not self._alive, timeout=grace)
            self._stopping = True
            self._mailbox.extend(
                partial(self._end, sequence, Finish.CANCELLED) for sequence in self._alive
            )
            self._wake.notify_all()
        self.executor.look()
        if self._thread.ident is not None:
            self._thread.join()

    # on the engine's thread

    def step(self) -> None:
        """One round: schedule, run, postprocess."""
        plan = self._schedule()
        self._run(plan)
        self._postprocess(plan)

    def _schedule(self) -> Plan:
        while self._mailbox:
            self._mailbox.popleft()()
        return self._scheduler.plan()

    def _run(self, plan: Plan) -> None:
        for source, target in plan.copies:
            self.executor.copy_page(source, target)
        if plan.chunk is not None:
            self._read(plan.chunk)
        rows = self._rows(plan)
        if rows:
            takers = [(s, None if s.single else s.sink) for s in plan.rows]
            self.executor.decode(rows, plan.steps, partial(self._deliver, takers))

    def _read(self, chunk: Chunk) -> None:
        sequence, start, stop = chunk.sequence, chunk.start, chunk.stop
        assert sequence.table is not None
        reader = sequence.reader if sequence.listens else None
        tokens, pages = sequence.tokens[start:stop], sequence.table.pages
        values = self.executor.prefill(tokens, start, pages, reader is not None and reader.head)
        if reader is not None and stop > sequence.heard:
            # One that was put back reads again what it has heard.
            reader.read(values[sequence.heard - start :])
            sequence.heard = stop

    def _rows(self, plan: Plan) -> list[Row]:
        """The rows of the launch; a sequence whose grammar cannot go on ends here."""
        rows = []
        for sequence in list(plan.rows):
            try:
                rows.append(_row(sequence))
            except ConstraintError as error:
                plan.rows.remove(sequence)
                self._end(sequence, Finish.ERROR, str(error))
        return rows

    def _deliver(self, takers: list[tuple[Sequence, Sink | None]], new: list[list[int]]) -> bool:
        """Tokens of a launch that goes on: hand them out. False where the mailbox has something."""
        for (sequence, sink), tokens in zip(takers, new, strict=True):
            if tokens:
                self._scheduler.extend(sequence, tokens)
                self._output_tokens += len(tokens)
                if sink is not None:
                    sink(Output(tokens, sequence.cached))
        return not self._mailbox

    def _postprocess(self, plan: Plan) -> None:
        if plan.chunk is not None:
            self._scheduler.read(plan.chunk)
            sequence = plan.chunk.sequence
            if sequence.finish is not None and not sequence.reads:
                self._end(sequence, sequence.finish)  # one that generates nothing
        for at, sequence in enumerate(plan.rows):
            error = self._postprocess_single(at, sequence) if sequence.single else ""
            if error:
                self._end(sequence, Finish.ERROR, error)
            elif sequence.finish is not None:
                self._end(sequence, sequence.finish)

    def _postprocess_single(self, at: int, sequence: Sequence) -> str:
        """Hand out the one token of a sequence that Python has a say in; what is wrong, if so."""
        token = sequence.tokens[-1]
        logprobs: tuple[TopLogprobs, ...] = ()
        if sequence.logprobs is not None:
            logprobs = (top_logprobs(self.executor.logits(at), token, sequence.logprobs),)
        sequence.sink(Output([token], sequence.cached, logprobs))
        if sequence.constraint is not None and sequence.finish is None:
            try:
                sequence.constraint.accept(token)
            except ConstraintError as error:
                return str(error)
        return ""

    def _end(self, sequence: Sequence, finish: Finish, error: str = "") -> None:
        if sequence not in self._alive:
            return  # it ended before its cancellation came
        self._scheduler.remove(sequence)
        self._prompt_tokens += sequence.prompt
        self._cached_tokens += sequence.cached
        with self._wake:
            self._alive.discard(sequence)
            self._wake.notify_all()
        sequence.sink(Output([], sequence.cached, finish=finish, error=error))

    def _serve(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._alive or self._mailbox or self._stopping)
                    if self._stopping and not self._alive:
                        return
                self.step()
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Nobody is left waiting for an engine that has stopped."""
        with self._wake:
            self._closed = f"the engine has failed: {error}"
            left, self._alive = self._alive, set()
            self._wake.notify_all()
        for sequence in left:
            sequence.sink(Output([], 0, finish=Finish.ERROR, error=self._closed))


def _row(sequence: Sequence) -> Row:
    assert sequence.table is not None
    bias = sequence.bias
    if sequence.constraint is not None:
        bias = _forbid(bias, sequence.constraint.allowed())
    return Row(
        list(sequence.tokens),
        sequence.prompt,
        sequence.limit,
        list(sequence.table.pages),
        sequence.sampling,
        bias,
    )


def _forbid(bias: NDArray[np.float32] | None, allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """float32 [vocab]: `bias` where allowed, else -inf."""
    base = np.float32(0) if bias is None else bias
    return np.where(allowed, base, np.float32(-np.inf)).astype(np.float32)
