"""Serving measured: many clients, one client next to the library, and what the prefix cache saves.

    python benchmarks/server.py model.gguf

The server is a process of its own, and so is the library's run. Next to the first number belongs
`benchmarks/batched_llama_cpp.py`, an upper bound of what llama.cpp's server does.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import time

import hotloop
from hotloop.bench.load import Plan, Result, load

CONTEXT = 2048
PROMPT = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
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
            show("1 client", ask(url, Plan(1, 4, 32, 0, 128, seed=2)))
            cold, warm = zip(*(first_tokens(url, seed) for seed in (10, 11, 12)), strict=True)
        finally:
            server.send_signal(signal.SIGTERM)
    cold_ms, warm_ms = 1e3 * statistics.median(cold), 1e3 * statistics.median(warm)
    print(
        f"first token after {PROMPT} words: {cold_ms:.0f} ms, cached {warm_ms:.0f} ms "
        f"({warm_ms / cold_ms:.1%})"
    )
    print(f"the library, alone: p50 {1e3 * library(args.model):.2f} ms between tokens")


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


def library(path: str) -> float:
    """Seconds between tokens of `Model.generate`, the median."""
    with hotloop.load(path, context=CONTEXT) as model:
        ids = model.prompt_ids(Plan(requests=1, prompt=32, seed=2).prompts()[0])
        for _ in range(2):  # the first compiles
            gaps, last = [], 0.0
            for _ in model.generate(ids, max_tokens=128):
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
        return statistics.median(gaps[1:])


if __name__ == "__main__":
    main()
