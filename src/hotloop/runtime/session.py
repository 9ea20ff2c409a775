"""Session: one sequence of tokens, its cache, and the programs that extend it.

A prompt is read in blocks by the *prompt* program, which has no LM head; its last token is the
first that the *decode* program takes in. What the cache holds already is not computed again: both
programs leave the same bits there, so a cache hit changes no token.
"""

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.executable import Executable, SequenceState
from hotloop.frontends.config import Config
from hotloop.ir.ops.speculation import NONE
from hotloop.runtime.bell import Bell
from hotloop.runtime.sampling import Sampling
from hotloop.util.debug import TIMINGS, debug
from hotloop.util.errors import ContextError, UsageError

#: `finish` in the control block → what people call it.
FINISH_REASONS = {0: "running", 1: "length", 2: "stop", 3: "cancelled"}
#: A prompt of so many tokens is not worth a program of its own, which takes a second to compile:
#: decode steps read it, and leave the same bits.
SHORT_PROMPT = 32
#: And so many are not worth its run, once it is there: it takes as long as two or three steps.
FEW_TOKENS = 2
#: Tokens of a prompt that are read at once.
PROMPT_BLOCK = 128
#: The same of a model with experts, each of which sees a few of these tokens only: its weights are
#: read once for them.
EXPERTS_BLOCK = 512


def prompt_block(config: Config) -> int:
    """Tokens of a prompt that are read at once."""
    return EXPERTS_BLOCK if config.experts else PROMPT_BLOCK


@dataclass(frozen=True)
class Speculation:
    """Of a generation by a program that guesses: passes over the model, tokens that were guessed
    for them, and how many of those were right."""

    steps: int
    drafted: int
    accepted: int

    @property
    def tokens_per_step(self) -> float:
        return (self.steps + self.accepted) / self.steps if self.steps else 0.0


class Session:
    """The cache and the token ring of one sequence, and what runs on them.

    `prompt` makes the prompt program's executable when a prompt first needs it; `block` is how
    many tokens that program takes at once.
    """

    def __init__(
        self,
        state: SequenceState,
        decode: Executable,
        prompt: Callable[[], Executable],
        block: int,
        context: int,
        vocab: int,
    ) -> None:
        self.decode = decode
        self.context = context
        self.vocab = vocab
        self.finish_reason = "length"
        self._make_prompt_program = prompt
        self._block = block
        self._ring: NDArray[np.generic] = state.view("ring")[0]
        self._control: NDArray[np.generic] = state.view("control")
        self._prompt_program: Executable | None = None
        self._cached: list[int] = []  # tokens whose keys and values are in the cache
        self._bell = Bell()
        self._launch: threading.Event | None = None  # set when the streaming launch has ended
        _own_all_pages(decode)

    def check(self, ids: Sequence[int], more: int = 1) -> None:
        """Raise where `ids` cannot be a prompt that `more` tokens follow."""
        if not ids:
            raise UsageError("the prompt has no tokens; give at least one.")
        if len(ids) + more - 1 > self.context:
            raise ContextError(
                f"the prompt has {len(ids)} tokens and the context holds {self.context}; shorten "
                "the prompt or ask for a longer context."
            )
        wrong = next((token for token in ids if not 0 <= token < self.vocab), None)
        if wrong is not None:
            raise UsageError(f"there is no token {wrong}; the model has 0 to {self.vocab - 1}.")

    def prefill(self, ids: Sequence[int]) -> None:
        """Take in all tokens but the last, less what the cache holds already."""
        self.stop()
        inner = list(ids[:-1])
        at = _common(self._cached, inner)
        self._cached = inner[:at]
        if len(inner) - at <= (FEW_TOKENS if self._prompt_program else SHORT_PROMPT):
            for position in range(at, len(inner)):
                self._one_step(position, inner[position])
                self.decode.run()
            self._cached = inner
        else:
            for start in range(at, len(inner), self._block):
                self._read_block(inner[start : start + self._block], start)
        self._ring[: len(ids)] = ids

    def prepare(self) -> Executable:
        """The program that reads prompts, compiled where it was not yet."""
        if self._prompt_program is None:
            self._prompt_program = self._make_prompt_program()
            _own_all_pages(self._prompt_program)
        return self._prompt_program

    def _read_block(self, tokens: list[int], start: int) -> None:
        program = self.prepare()
        program.view("token")[: len(tokens)] = tokens
        program.view("pos")[0] = start
        started = time.perf_counter()
        program.run(len(tokens))
        ms = (time.perf_counter() - started) * 1e3
        debug(TIMINGS, lambda: f"prompt: {len(tokens)} tokens in {ms:.2f} ms")
        self._cached += tokens

    def start(self, ids: Sequence[int], max_tokens: int, sampling: Sampling) -> None:
        """Everything that a decode launch reads: the last token of `ids`, and when to stop."""
        self.check(ids)
        self.prefill(ids)
        sampling.write(self._control, len(ids))
        control = self._control[0]
        control["published"] = len(ids)
        control["last_pos"] = min(len(ids) - 1 + max_tokens, self.context)
        self._take_in(ids[-1], len(ids) - 1)

    def run(self) -> None:
        """Decode until the launch ends, in the calling thread."""
        first = int(self._control[0]["published"])
        started = time.perf_counter()
        self.decode.run(until_done=True)
        self._settle()
        n, ms = int(self._control[0]["published"]) - first, (time.perf_counter() - started) * 1e3
        debug(TIMINGS, lambda: f"decode: {n} tokens in {ms:.2f} ms, {ms / max(n, 1):.3f} ms each")

    @property
    def speculation(self) -> Speculation:
        """How the last launch guessed."""
        control = self._control[0]
        steps, generated = int(control["steps"]), int(control["published"] - control["prompt"])
        return Speculation(steps, int(control["drafted"]), generated - steps if steps else 0)

    def _settle(self) -> None:
        control = self._control[0]
        # The last token is known, but was not taken in.
        self._cached = self._ring[: int(control["published"]) - 1].tolist()
        self.finish_reason = FINISH_REASONS[int(control["finish"])]

    def stream(self) -> Generator[int, None, None]:
        """Decode in another thread, and give each token when it is there.

        Closing the iterator cancels the launch at its next token.
        """
        failure: list[BaseException] = []
        # An event of our own: a thread that is joined with a limit and interrupted by Ctrl-C
        # counts as ended in Python 3.11 (bpo-45274), though it runs on.
        ended = threading.Event()
        bell = self._bell

        def drive() -> None:
            try:
                self.run()
            except BaseException as error:
                failure.append(error)
            finally:
                ended.set()
                bell.ring()

        control = self._control[0]
        read = int(control["published"])
        self._launch = ended
        control["bell"] = bell.address
        threading.Thread(target=drive, name="hotloop-0", daemon=True).start()
        try:
            running = True
            while running:
                bell.wait()
                running = not ended.is_set()
                published = int(control["published"])
                yield from self._ring[read:published].tolist()
                read = published
            if failure:
                raise failure[0]
        finally:
            control["bell"] = 0
            if self._launch is ended:
                self.stop()

    def stop(self) -> None:
        """End the launch that runs, if any, at its next token."""
        launch, self._launch = self._launch, None
        if launch is not None and not launch.is_set():
            self._control[0]["cancel"] = 1
            launch.wait()

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """float32 [len(ids), vocab]: the logits after each token, each by a decode step."""
        self.check(ids)
        self.stop()
        out = np.empty((len(ids), self.vocab), np.float32)
        row = self.decode.view("logits")
        for at, token in enumerate(ids):
            self._one_step(at, token)
            self.decode.run()
            out[at] = row[0]
        self._cached = list(ids)
        return out

    def score(
        self, ids: Sequence[int], first: int, program: Executable
    ) -> Iterator[NDArray[np.float32]]:
        """float32 [n, vocab], block by block: the logits after the tokens from index `first` on.

        `program` is the prompt program with the LM head at its end; its logits are those of decode
        steps, bit for bit.
        """
        self.check(ids)
        self.prefill(ids[: first + 1])
        _own_all_pages(program)
        for start in range(first, len(ids), PROMPT_BLOCK):
            tokens = list(ids[start : start + PROMPT_BLOCK])
            program.view("token")[: len(tokens)] = tokens
            program.view("pos")[0] = start
            program.run(len(tokens))
            self._cached += tokens
            yield program.view("logits")[: len(tokens)].astype(np.float32)

    def trace(self, ids: Sequence[int]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Every value of the step that takes in the last token of `ids` (schedule ops only)."""
        self.check(ids)
        self.prefill(ids)
        self._one_step(len(ids) - 1, ids[-1])
        yield from self.decode.step_through()

    def _one_step(self, at: int, token: int) -> None:
        Sampling().write(self._control)
        self._control[0]["last_pos"] = at + 1
        self._ring[at] = token
        self._take_in(token, at)

    def _take_in(self, token: int, at: int) -> None:
        """The next step's token and its position; where it speculates, without guesses."""
        tokens = self.decode.view("token")
        tokens[:] = NONE
        tokens[0] = token
        self.decode.view("pos")[0] = at

    def forget(self) -> None:
        """Empty the cache."""
        self.stop()
        self._cached = []


def _own_all_pages(program: Executable) -> None:
    """The cache is this sequence's alone: page i holds its chunk i."""
    pages = program.view("pages")
    pages[0] = np.arange(pages.shape[1])


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same)
