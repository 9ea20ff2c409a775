"""A sequence: one request's tokens on their way through the engine."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.pages import PageTable
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import HotloopError


class Finish(Enum):
    """Why a sequence ended, in the words of OpenAI's API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class ConstraintError(HotloopError):
    """A grammar that cannot go on, or takes more than it may."""


class Constraint(Protocol):
    """A grammar that the output has to follow. It belongs to one sequence."""

    def allowed(self) -> NDArray[np.bool_]:
        """bool [vocab]: the tokens that may come next; at least one.

        Raises `ConstraintError` where the grammar cannot go on.
        """

    def accept(self, token: int) -> None:
        """Go on with `token`, which was allowed."""


class Reader(Protocol):
    """What is made of a prompt beside its continuation. It belongs to one sequence."""

    @property
    def head(self) -> bool:
        """Whether it reads logits, or else hidden states after the final norm."""

    def read(self, values: NDArray[np.float32]) -> None:
        """Take those of the next positions, float32 [n, …]; they change after the call."""


@dataclass(frozen=True)
class TopLogprobs:
    """Natural logarithms of probabilities at one position, before sampling changes any.

    `tokens` are the likeliest ones, the likeliest first, and `logprobs` theirs; `chosen` is the
    logarithm of the token that was taken.
    """

    chosen: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Output(NamedTuple):
    """What a launch added to a sequence.

    `finish` is None until the last one; `cached`, how many tokens of the prompt the prefix cache
    held, is known in every one; `error` says what went wrong, for `Finish.ERROR`.
    """

    tokens: list[int]
    cached: int
    logprobs: tuple[TopLogprobs, ...] = ()
    finish: Finish | None = None
    error: str = ""


Sink = Callable[[Output], None]


@dataclass(eq=False)
class Sequence:
    """A prompt and how to continue it; then also how far it has got.

    `tokens` holds the prompt, then the output. `limit` is how many tokens it may have in all.
    `bias` (float32 [vocab], or None) is added to the logits; -inf forbids a token. `logprobs` asks
    for so many likeliest tokens at each position (None: for nothing). `reader` is given the values
    at every position of the prompt, but its last where something is generated. `sink` takes each
    output. Reader and sink must neither wait nor call the engine; the sink is called on any thread,
    but not twice at a time.
    """

    tokens: list[int]
    limit: int
    sampling: Sampling
    sink: Sink
    bias: NDArray[np.float32] | None = None
    constraint: Constraint | None = None
    logprobs: int | None = None
    reader: Reader | None = None

    # How far it has got: kept by the scheduler.
    table: PageTable | None = None
    """Its pages; None while it waits."""
    computed: int = 0
    """Tokens whose keys and values are in the pages."""
    cached: int = 0
    """Tokens of the prompt that were found in the prefix cache when it first started."""
    heard: int = 0
    """Positions whose values `reader` has been given."""

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def single(self) -> bool:
        """Whether Python has a say between its tokens, so that a launch makes one at a time."""
        return self.constraint is not None or self.logprobs is not None

    @property
    def goal(self) -> int:
        """Tokens to read: all but the last, which a decode launch takes, if there is to be one."""
        return len(self.tokens) - (len(self.tokens) < self.limit)

    @property
    def reads(self) -> bool:
        """Whether tokens are still to be read."""
        return self.computed < self.goal

    @property
    def listens(self) -> bool:
        """Whether `reader` still waits for values, so that no token may be found in the cache."""
        return self.reader is not None and self.heard < self.prompt - (self.prompt < self.limit)

    @property
    def finish(self) -> Finish | None:
        """Whether, and why, its last token was its last."""
        if len(self.tokens) > self.prompt and self.tokens[-1] in self.sampling.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.tokens) >= self.limit else None
