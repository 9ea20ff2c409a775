"""Print tokens as they come, and know how fast they came."""

import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.api import Model, Token

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


@dataclass(frozen=True)
class Stream:
    """What became of one generation."""

    text: str
    tokens: int
    first: float
    """Seconds from the request to the first token; 0 where there was none."""
    rest: float
    """Seconds from the first token to the last."""
    interrupted: bool

    @property
    def rate(self) -> float:
        """Tokens per second after the first, which includes the prompt; 0 where unknown."""
        return (self.tokens - 1) / self.rest if self.tokens > 1 and self.rest > 0 else 0.0


def stream(tokens: "Generator[Token, None, None]") -> Stream:
    """Print the text of each token to stdout at once, and a newline at the end.

    Ctrl-C ends the generation, not the process; so does a reader of stdout that goes away, but
    that is raised (`BrokenPipeError`).
    """
    start = first = last = time.perf_counter()
    texts: list[str] = []
    interrupted = False
    with closing(tokens):
        try:
            for token in tokens:
                last = time.perf_counter()
                if not texts:
                    first = last
                texts.append(token.text)
                print(token.text, end="", flush=True)
        except KeyboardInterrupt:
            interrupted = True
    text = "".join(texts)
    if interrupted or not text.endswith("\n"):
        print(flush=True)
    return Stream(text, len(texts), first - start, last - first, interrupted)


def print_stats(done: Stream, model: "Model", *, loading: bool = True) -> None:
    """One line on stderr: how many tokens, how fast, how long until the first, why it ended."""
    words = [f"{done.tokens} tokens"]
    if done.rate:
        words.append(f"{done.rate:.1f} tok/s")
    if done.tokens:
        words.append(f"first after {done.first:.2f} s")
    if model.speculate:
        seen = model.speculation
        words.append(
            f"{seen.tokens_per_step:.2f} tokens a step "
            f"({seen.accepted} of {seen.drafted} guesses were right)"
        )
    if loading:
        times = model.timings
        code = "code from cache" if times.cached else "compiled"
        words.append(
            f"loaded in {times.load:.2f} s, packed {times.pack:.2f} s, {code} {times.compile:.2f} s"
        )
    words.append(f"finish: {'cancelled' if done.interrupted else model.finish_reason}")
    print(" · ".join(words), file=sys.stderr)
