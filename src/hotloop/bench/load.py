"""Load: many clients that ask a server with OpenAI's API, and how long it keeps them waiting.

Each client sends its next request when it has the answer to its last (a closed loop), so that the
number of requests in flight is the number of clients. Prompts are made of common words, drawn by a
seed: every server gets the same ones. Times are seconds on the client's clock:

    first     from sending a request to the first event with text
    between   from one event with text to the next, in one stream
    total     from sending a request to the end of its answer
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx2
import numpy as np

from hotloop.util.errors import HotloopError

PERCENTILES = (50, 90, 99)
TIMEOUT_SECONDS = 600.0
#: Characters of what a server says is wrong.
MOST_SAID = 200

#: Words that are a token each in the usual vocabularies.
# fmt: off
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact",
    "month", "lot", "right", "study", "book", "eye", "job", "word",
)
# fmt: on


class LoadError(HotloopError):
    """A server that does not answer as it should."""


@dataclass(frozen=True)
class Plan:
    """What to ask. Lengths of prompts are in words, which are about a token each.

    `shared` words at the beginning are the same in all prompts.
    """

    clients: int = 8
    requests: int = 64
    prompt: int = 128
    shared: int = 0
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def prompts(self) -> list[str]:
        draw = random.Random(self.seed)
        shared = draw.choices(_WORDS, k=min(self.shared, self.prompt))
        own = self.prompt - len(shared)
        return [" ".join([*shared, *draw.choices(_WORDS, k=own)]) for _ in range(self.requests)]


@dataclass
class Answer:
    """One request: its times, the tokens that the server counted, or why it failed."""

    first: float = 0.0
    total: float = 0.0
    between: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a plan: `seconds` from the first request to the last answer."""

    model: str
    plan: Plan
    seconds: float
    answers: Sequence[Answer]

    @property
    def good(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.error]

    @property
    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error]

    @property
    def rate(self) -> float:
        """Tokens a second, of all clients together."""
        return sum(answer.tokens for answer in self.good) / self.seconds

    def times(self, name: str) -> list[float]:
        """All times of one kind: first, between or total."""
        if name == "between":
            return [seconds for answer in self.good for seconds in answer.between]
        return [getattr(answer, name) for answer in self.good]

    def percentiles(self, name: str) -> dict[str, float]:
        """Seconds by p50, p90, p99; empty where nothing was measured."""
        times = self.times(name)
        if not times:
            return {}
        values = np.percentile(times, PERCENTILES)
        return {f"p{at}": float(value) for at, value in zip(PERCENTILES, values, strict=True)}

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "plan": asdict(self.plan),
            "seconds": self.seconds,
            "requests": len(self.answers),
            "errors": self.errors,
            "tokens": sum(answer.tokens for answer in self.good),
            "prompt_tokens": sum(answer.prompt_tokens for answer in self.good),
            "cached_tokens": sum(answer.cached_tokens for answer in self.good),
            "tokens_per_second": self.rate,
        } | {name: self.percentiles(name) for name in ("first", "between", "total")}


async def load(
    url: str,
    plan: Plan,
    key: str | None = None,
    model: str | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Result:
    """Carry out `plan` on the server at `url`, its root, with or without /v1.

    `progress` is called after each answer. Raises `LoadError` where the server cannot be reached,
    or names no model; a request that fails is part of the result.
    """
    headers = {"Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    limits = httpx2.Limits(max_connections=plan.clients)
    root = url.rstrip("/").removesuffix("/v1")
    async with httpx2.AsyncClient(
        base_url=root, headers=headers, timeout=TIMEOUT_SECONDS, limits=limits
    ) as http:
        model = model or await _first_model(http)
        answers = [Answer() for _ in range(plan.requests)]
        todo = iter(zip(plan.prompts(), answers, strict=True))

        async def client() -> None:
            for prompt, answer in todo:
                await _ask(http, model, prompt, plan, answer)
                progress()

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(plan.clients)))
        return Result(model, plan, time.perf_counter() - started, answers)


async def _first_model(http: httpx2.AsyncClient) -> str:
    where = f"{str(http.base_url).rstrip('/')}/v1/models"
    try:
        response = await http.get("/v1/models")
        if response.status_code != 200:
            said = f"{response.status_code}: {_said(response.content)}"
            raise LoadError(f"{where} has no list of models ({said}).")
        return str(response.json()["data"][0]["id"])
    except httpx2.HTTPError as error:
        raise LoadError(f"{http.base_url} has no /v1/models ({error or type(error)}).") from None
    except (ValueError, LookupError, TypeError):
        raise LoadError(f"{where} does not list a model.") from None


def _said(body: bytes) -> str:
    """What a refusal says: the message, where it has OpenAI's shape."""
    try:
        return str(json.loads(body)["error"]["message"])[:MOST_SAID]
    except (ValueError, LookupError, TypeError):
        return body[:MOST_SAID].decode(errors="replace")


async def _ask(
    http: httpx2.AsyncClient, model: str, prompt: str, plan: Plan, answer: Answer
) -> None:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": plan.max_tokens,
        "temperature": plan.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # Read when all has come: what a generator does between tokens, it takes from the server where
    # both are on one machine.
    pieces: list[tuple[float, bytes]] = []
    started = time.perf_counter()
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                answer.error = f"{response.status_code}: {_said(await response.aread())}"
                return
            async for piece in response.aiter_raw():
                pieces.append((time.perf_counter(), piece))
        answer.total = time.perf_counter() - started
        _read(pieces, started, answer)
    except (httpx2.HTTPError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if not answer.tokens and answer.first:  # a server that does not say how many
        answer.tokens = 1 + len(answer.between)


def _read(pieces: Sequence[tuple[float, bytes]], started: float, answer: Answer) -> None:
    """What the events say, each at the time when its last byte came."""
    last, held = started, b""
    for now, piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice.get("text") for choice in event.get("choices", ())):
                if answer.first:
                    answer.between.append(now - last)
                else:
                    answer.first = now - started
                last = now
            _note(event, answer)


def _note(event: dict[str, Any], answer: Answer) -> None:
    """The usage, where an event has it; an error, likewise."""
    if usage := event.get("usage"):
        answer.tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens") or 0
    if error := event.get("error"):
        answer.error = str(error)[:MOST_SAID]
