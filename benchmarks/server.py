"""Serving measured: many clients, one next to `hotloop run`, and what the prefix cache saves.

    python benchmarks/server.py model.gguf

Next to the first number belongs `benchmarks/batched_llama_cpp.py`, an upper bound of what
llama.cpp's server does. The one client and `hotloop run` take turns; both are read by as little
code as can be, which notes when bytes came from a socket or a pipe, since who reads runs on the
same cores.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import numpy as np

from hotloop.bench.load import Plan, Result, load

CONTEXT = 2048
PROMPT = 1000
#: What one client and `hotloop run` continue, for so many tokens: a list that does not end.
COUNTING, COUNTED = ", ".join(map(str, range(1, 17))) + ",", 256
#: Gaps left out at the beginning: a prompt is read first, and a pipe opened.
BEGINNING = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    options = ["--port", "0", "--context", str(CONTEXT), "--parallel", str(args.clients)]
    command = [sys.executable, "-m", "hotloop", "serve", args.model, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            ask(url, Plan(args.clients, args.clients, 16, 0, 8))  # whatever is slow once
            crowd = Plan(args.clients, 3 * args.clients, 128, 0, 128, seed=1)
            show(f"{args.clients} clients", ask(url, crowd))
            alone = [
                (served_gaps(url), run_gaps(args.model), served_gaps(url))
                for _ in range(args.rounds)
            ]
            cold, warm = zip(*(first_tokens(url, seed) for seed in (10, 11, 12)), strict=True)
        finally:
            server.send_signal(signal.SIGTERM)
    cold_ms, warm_ms = 1e3 * statistics.median(cold), 1e3 * statistics.median(warm)
    print(
        f"first token after {PROMPT} words: {cold_ms:.0f} ms, cached {warm_ms:.0f} ms "
        f"({warm_ms / cold_ms:.1%})"
    )
    show_gaps("1 client", [gap for a, _, b in alone for gap in a + b])
    show_gaps("hotloop run", [gap for _, run, _ in alone for gap in run])
    ratios = [np.median(a + b) / np.median(run) for a, run, b in alone]
    print(f"1 client / hotloop run, p50 of each round: {statistics.median(ratios):.3f}")


def ask(url: str, plan: Plan) -> Result:
    return asyncio.run(load(url, plan))


def show(name: str, result: Result) -> None:
    times = ", ".join(
        f"{kind} p50 {1e3 * found['p50']:.2f} p99 {1e3 * found['p99']:.2f} ms"
        for kind in ("first", "between")
        if (found := result.percentiles(kind))
    )
    print(f"{name}: {result.rate:.1f} tok/s, {times}, {len(result.errors)} errors", flush=True)


def first_tokens(url: str, seed: int) -> tuple[float, float]:
    """Seconds to the first token of a prompt that is new, and of one that goes on from it."""
    new = ask(url, Plan(1, 1, PROMPT, PROMPT, 1, seed=seed)).answers[0]
    more = ask(url, Plan(1, 1, PROMPT + 16, PROMPT, 1, seed=seed)).answers[0]
    return new.first, more.first


def served_gaps(url: str) -> list[float]:
    """Seconds between the events of one stream."""
    body = json.dumps({"prompt": COUNTING, "max_tokens": COUNTED, "temperature": 0, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        return gaps(lambda: connection.recv(1 << 16), b"0\r\n\r\n")


def run_gaps(model: str) -> list[float]:
    """Seconds between the tokens that `hotloop run` writes."""
    options = ["--raw", "-p", COUNTING, "-n", str(COUNTED), "--context", str(CONTEXT)]
    command = [sys.executable, "-m", "hotloop", "run", model, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        return gaps(lambda: os.read(pipe, 1 << 16), b"")


def gaps(read: Callable[[], bytes], last: bytes) -> list[float]:
    """Seconds between what `read` gives, until it gives something that ends with `last`, if so."""
    times = []
    while piece := read():
        times.append(time.perf_counter())
        if last and piece.endswith(last):
            break
    return np.diff(times)[BEGINNING:].tolist()


def show_gaps(name: str, found: list[float]) -> None:
    p50, p99 = 1e3 * np.percentile(found, (50, 99))
    print(f"{name}: between tokens p50 {p50:.2f} p99 {p99:.2f} mean {1e3 * np.mean(found):.2f} ms")


if __name__ == "__main__":
    main()
