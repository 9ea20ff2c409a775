"""A generation: the sequences of one request on the engine, and their text as it comes.

The engine knows tokens only and calls from its own thread; here tokens become text, stop strings
are found, and whoever waits in the event loop gets both. Leaving a generation, for whatever
reason, cancels what still runs.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.logprobs import PromptLogprobs
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.sequence import Finish, Output, TopLogprobs
from hotloop.runtime.sequence import Sequence as Tokens
from hotloop.serve.errors import ApiError, as_api_error
from hotloop.serve.grammar import Rules
from hotloop.serve.served import Served
from hotloop.serve.stops import StopFinder
from hotloop.util.errors import ContextError, UsageError

#: Ends that are not the doing of a sequence itself, nor of its client.
FAILURES = (Finish.ERROR, Finish.CANCELLED)


def failure(served: Served, output: Output, rules: Rules | None = None) -> ApiError:
    """Whose doing one of `FAILURES` is: the engine's, or a grammar's that cannot go on."""
    if output.finish is Finish.CANCELLED:
        return ApiError("the server is shutting down.", 503, code="unavailable")
    if served.engine.failure:
        return ApiError(output.error, 500)
    return ApiError(output.error, 400, rules.param if rules else None)


@dataclass(frozen=True)
class Options:
    """How every choice of a request is generated.

    `max_tokens` None means what the context still holds. `constraint` makes a grammar for each
    choice. `special` shows the text of control tokens. `echo` puts the prompt before
    each choice; `logprobs` then are those of its tokens, too.
    """

    max_tokens: int | None
    sampling: Sampling
    n: int = 1
    stops: Sequence[str] = ()
    bias: NDArray[np.float32] | None = None
    logprobs: int | None = None
    constraint: Rules | None = None
    special: bool = False
    echo: bool = False


#: A token and how likely it was, which nobody knows of the first one.
Scored = tuple[int, TopLogprobs | None]


@dataclass(slots=True)
class Delta:
    """What came for one choice: text, logprobs of its tokens, and at the end why it ended."""

    index: int
    text: str
    logprobs: Sequence[Scored] = ()
    finish: Finish | None = None


class Choice:
    """One answer to one prompt: its sequence, and what has become text."""

    def __init__(
        self, index: int, served: Served, prompt: list[int], options: Options, sequence: Tokens
    ) -> None:
        self.index = index
        self.sequence = sequence
        self.prompt = prompt
        self.made = 0
        self.times: list[float] = []  # when its tokens came; counting them can wait
        self.cached = 0
        self.ended = False
        self._begun = False
        self._text = served.tokenizer.stream(options.special)
        self._stops = StopFinder(options.stops) if options.stops else None
        self._stop_ids = options.sampling.stop_ids
        self._held: list[Scored] = []
        self._echo = served.tokenizer.decode(prompt, special=False) if options.echo else ""

    def take(self, output: Output) -> Delta | None:
        """What `output` adds; None where nothing is certain yet. Sets `ended`."""
        self.cached = output.cached
        if output.tokens:
            self.times.append(time.perf_counter())
        text, finish = "", output.finish
        for at, token in enumerate(output.tokens):
            self.made += 1
            if output.logprobs:
                self._held.append((token, output.logprobs[at]))
            if token not in self._stop_ids:
                piece = self._text.push(token)
                text += self._stops.push(piece) if self._stops else piece
            if self._stops and self._stops.stopped:
                finish = Finish.STOP
                break
        if finish is not None:
            self.ended = True
            rest = self._text.flush()
            text += self._stops.flush(rest) if self._stops else rest
        if not text and finish is None:
            return None
        held, self._held = self._held, []
        if not self._begun:
            self._begun = True
            text, held = self._echo + text, [*self._prompt_logprobs(), *held]
        return Delta(self.index, text, held, finish)

    def _prompt_logprobs(self) -> list[Scored]:
        reader = self.sequence.reader
        if not isinstance(reader, PromptLogprobs):
            return []
        return list(zip(self.prompt, [None, *reader.found], strict=True))


class Generation:
    """The choices for all prompts of a request: n for the first prompt, n for the second, …

    The prompts have passed `Served.check_prompt`.

    `submit` it, ask it for `more` until there is none, and `close` it, whatever happens in between.
    """

    def __init__(self, served: Served, prompts: Sequence[list[int]], options: Options) -> None:
        self.served = served
        self.prompts = prompts
        self.options = options
        self._submitted = 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived: deque[tuple[int, Output]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.choices = [
            self._choice(at * options.n + copy, prompt, copy)
            for at, prompt in enumerate(prompts)
            for copy in range(options.n)
        ]
        self._left = len(self.choices)

    def _choice(self, index: int, prompt: list[int], copy: int) -> Choice:
        options, room = self.options, self.served.context + 1 - len(prompt)
        more = room if options.max_tokens is None else min(options.max_tokens, room)
        seed = (options.sampling.seed + copy) % 2**64
        reader = None
        if options.echo and options.logprobs is not None:
            reader = PromptLogprobs(prompt, options.logprobs)
        sequence = Tokens(
            list(prompt),
            len(prompt) + more,
            replace(options.sampling, seed=seed),
            partial(self._sink, index),
            options.bias,
            options.constraint() if options.constraint else None,
            options.logprobs,
            reader,
        )
        return Choice(index, self.served, prompt, options, sequence)

    def _sink(self, index: int, output: Output) -> None:
        """On any thread. A loop that has been closed has nobody left to tell."""
        self._arrived.append((index, output))
        if threading.get_ident() == self._thread:
            self._wake()
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def submit(self) -> None:
        """Hand all choices to the engine, which takes all or none: see `Engine.submit`."""
        self._submitted = time.perf_counter()
        if self.options.max_tokens == 0 and self.choices[0].sequence.reader is None:
            for choice in self.choices:
                self._sink(choice.index, Output([], 0, finish=Finish.LENGTH))
        else:
            self._loop.add_reader(self.served.engine.bell, self.served.engine.look)
            try:
                self.served.engine.submit([choice.sequence for choice in self.choices])
            except UsageError as error:  # more than it ever takes
                param = "n" if self.options.n > 1 else "prompt"
                raise as_api_error(error, param) from None
            except ContextError as error:
                raise as_api_error(error, "max_tokens") from None

    def close(self) -> None:
        """Cancel what still runs, and count what ran."""
        for choice in self.choices:
            if choice.times:
                self.served.metrics.first.observe(choice.times[0] - self._submitted)
            for before, after in pairwise(choice.times):
                self.served.metrics.between.observe(after - before)
            choice.times = []
        self._cancel([choice for choice in self.choices if not choice.ended])

    def _cancel(self, choices: Sequence[Choice]) -> None:
        if choices:
            self.served.engine.cancel([choice.sequence for choice in choices])

    async def more(self) -> list[Delta]:
        """What has come since the last call, as soon as there is any; nothing after the end.

        Raises `ApiError` where a choice ends without its own or its client's doing.
        """
        deltas: list[Delta] = []
        while self._left and not deltas:
            if not self._arrived:
                self._waiter = self._loop.create_future()
                await self._waiter
            while self._arrived:
                index, output = self._arrived[0]
                choice = self.choices[index]
                if output.finish in FAILURES and not choice.ended:
                    if deltas:
                        break  # what came before it goes first
                    choice.ended = True
                    raise failure(self.served, output, self.options.constraint)
                self._arrived.popleft()
                if choice.ended:
                    continue  # tokens after a stop string
                if (delta := choice.take(output)) is None:
                    continue
                deltas.append(delta)
                if delta.finish is not None:
                    self._left -= 1
                    if output.finish is None:  # a stop string, of which the engine knows nothing
                        self._cancel([choice])
        return deltas

    def usage(self) -> dict[str, object]:
        """The JSON of `schemas.Usage`: each prompt counts once, whatever n is."""
        prompt = sum(len(tokens) for tokens in self.prompts)
        made = sum(choice.made for choice in self.choices)
        cached = sum(choice.cached for choice in self.choices[:: self.options.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
