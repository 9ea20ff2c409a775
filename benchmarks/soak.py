"""Soak: thousands of requests of all kinds, good and bad, and what is left of the server after.

    python benchmarks/soak.py http://127.0.0.1:8080 --pid PID --requests 10000

A request is *lost* if it gets no answer, half of one, or one that it should not get. A client that
goes away on purpose, or says what is wrong, is part of the plan. With --pid, the memory of the
server is compared between a tenth of the way, when caches are warm, and the end.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

#: Long, since the machine may have other things to do meanwhile.
TIMEOUT_SECONDS = 600.0
#: Tokens of an answer: few, since what is tested is requests.
MOST_TOKENS = 16
WARM = 0.1
WORDS = ("time", "year", "way", "day", "life", "work", "fact", "word")
#: How often each kind of request is made.
KINDS = {"whole": 4, "stream": 4, "drop": 3, "bad": 1, "long": 1, "unknown": 1}


@dataclass
class Report:
    """What became of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    """Bytes of the server's memory, at a tenth of the way and at the end."""
    load: dict[str, int] = field(default_factory=dict)
    """What the engine says when nothing runs any more."""

    @property
    def growth(self) -> float:
        return self.rss[-1] / self.rss[0] - 1 if self.rss else 0.0


class Soak:
    """Clients on one server, whose draws are decided by a seed."""

    def __init__(self, http: httpx2.AsyncClient, model: str, seed: int) -> None:
        self._http = http
        self._model = model
        self._draw = random.Random(seed)
        self._shared = " ".join(self._words(40))

    def _words(self, count: int) -> list[str]:
        return self._draw.choices(WORDS, k=count)

    def _body(self, **more: object) -> dict[str, object]:
        prompt = " ".join([self._shared, *self._words(self._draw.randint(1, 40))])
        tokens = self._draw.randint(1, MOST_TOKENS)
        return {"model": self._model, "prompt": prompt, "max_tokens": tokens, **more}

    async def whole(self) -> str:
        response = await self._http.post("/v1/completions", json=self._body())
        if response.status_code == 200 and response.json()["usage"]["completion_tokens"] < 1:
            return "lost: an answer without tokens"
        return _expect(response, 200)

    async def stream(self) -> str:
        async with self._http.stream(
            "POST", "/v1/completions", json=self._body(stream=True)
        ) as response:
            lines = [line async for line in response.aiter_lines() if line]
        if response.status_code == 200 and lines[-1] != "data: [DONE]":
            return "lost: a stream without end"
        return _expect(response, 200)

    async def drop(self) -> str:
        """Go away after some events, or before any."""
        keep = self._draw.randint(0, 5)
        async with self._http.stream(
            "POST", "/v1/completions", json=self._body(stream=True) | {"max_tokens": 200}
        ) as response:
            if response.status_code == 200:
                async for _ in response.aiter_lines():
                    keep -= 1
                    if keep < 0:
                        return "dropped"
        return _expect(response, 200)

    async def bad(self) -> str:
        text = json.dumps(self._body())[: self._draw.randint(0, 60)]
        headers = {"Content-Type": "application/json"}
        return _expect(await self._http.post("/v1/completions", content=text, headers=headers), 400)

    async def long(self) -> str:
        body = self._body() | {"prompt": "word " * 200_000}
        return _expect(await self._http.post("/v1/completions", json=body), 400)

    async def unknown(self) -> str:
        body = self._body() | {"model": "another"}
        return _expect(await self._http.post("/v1/completions", json=body), 404)

    async def one(self) -> str:
        """One request of a kind that is drawn; how it ended."""
        kind = self._draw.choices(list(KINDS), list(KINDS.values()))[0]
        ask: Callable[[], Awaitable[str]] = getattr(self, kind)
        try:
            outcome = await ask()
        except (httpx2.HTTPError, ValueError, LookupError) as error:
            outcome = f"lost: {type(error).__name__} {error}"
        return f"{kind}: {outcome}"


def _expect(response: httpx2.Response, status: int) -> str:
    if response.status_code == 429:
        return "told to wait"
    return "well" if response.status_code == status else f"lost: {response.status_code}"


async def soak(
    url: str, requests: int, clients: int, seed: int = 0, pid: int | None = None
) -> Report:
    """Make `requests` requests from `clients` clients, and wait until the server is at rest."""
    report = Report()
    limits = httpx2.Limits(max_connections=2 * clients)
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        asking = Soak(http, model, seed)
        todo = iter(range(requests))

        async def client() -> None:
            for at in todo:
                if pid is not None and at == int(WARM * requests):
                    report.rss.append(rss(pid))
                outcome = await asking.one()
                report.outcomes[outcome] += 1
                if ": lost" in outcome:
                    report.lost.append(outcome)

        await asyncio.gather(*(client() for _ in range(clients)))
        report.load = await _at_rest(http)
        if pid is not None:
            report.rss.append(rss(pid))
    return report


async def _at_rest(http: httpx2.AsyncClient) -> dict[str, int]:
    """The engine's load once nothing runs; whatever it is after two minutes."""
    for _ in range(2400):
        load: dict[str, int] = (await http.get("/status")).json()["load"]
        if load["running"] == load["waiting"] == 0:
            break
        await asyncio.sleep(0.05)
    return load


def rss(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    args = parser.parse_args()
    started = time.perf_counter()
    report = asyncio.run(soak(args.url, args.requests, args.clients, args.seed, args.pid))
    for outcome, count in sorted(report.outcomes.items()):
        print(f"{count:>7} {outcome}")
    load = report.load
    print(f"{sum(report.outcomes.values())} requests in {time.perf_counter() - started:.0f} s")
    print(f"pages free at the end: {load['pages_free']} of {load['pages']}")
    if report.rss:
        print(
            f"memory: {report.rss[0] >> 20} MiB, then {report.rss[-1] >> 20} ({report.growth:+.2%})"
        )
    return int(bool(report.lost) or load["pages_free"] != load["pages"])


if __name__ == "__main__":
    sys.exit(main())
