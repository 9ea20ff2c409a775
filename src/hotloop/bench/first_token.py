"""How long a user waits: from the start of a fresh process to its first token.

Run as a module, this file is that process: it loads a model, generates one token, and prints what
the time went into.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hotloop.bench.result import FirstToken
from hotloop.util import settings
from hotloop.util.errors import HotloopError

PROMPT_TOKENS = 20
TIME_LIMIT = 600.0


def measure(
    path: Path,
    threads: int,
    activations: str,
    kv_cache: str,
    quantize: str | None,
    repeats: int,
) -> list[FirstToken]:
    """[cold, warm]: with an empty cache of machine code, and with what the cold run left there.

    Each is the median of `repeats` pairs of processes, part by part. The model file itself is in
    the system's page cache.
    """
    pairs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as cache:
            options = [str(threads), activations, kv_cache, *([quantize] if quantize else [])]
            pairs.append([_probe(path, options, cache) for _ in range(2)])
    return [
        FirstToken(
            *(
                statistics.median(getattr(pair[which], part.name) for pair in pairs)
                for part in fields(FirstToken)
            )
        )
        for which in range(2)
    ]


def _probe(path: Path, options: Sequence[str], cache: str) -> FirstToken:
    """One process from start to first token; the system's monotonic clock is the same in both."""
    environment = {
        **os.environ,
        settings.CACHE.name: cache,
        settings.CODE_CACHE.name: "1",
        settings.DEBUG.name: "0",
    }
    command = [sys.executable, "-m", __name__, str(path.absolute()), *options]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise HotloopError(
            f"a fresh process had no first token after {TIME_LIMIT:.0f} s; try hotloop run."
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HotloopError(f"a fresh process came to no first token: {reason}")
    parts = json.loads(done.stdout)
    begun, ended = parts.pop("begun"), parts.pop("ended")
    return FirstToken(start=begun - started, total=ended - started, **parts)


def _child(
    path: str, threads: str, activations: str, kv_cache: str, quantize: str | None = None
) -> None:
    from hotloop.api import load
    from hotloop.bench.prompts import sample_ids

    begun = time.monotonic()
    with load(
        path, int(threads), activations=activations, kv_cache=kv_cache, quantize=quantize
    ) as model:
        ids = sample_ids(model.config.vocab, PROMPT_TOKENS)
        ready = time.monotonic()
        next(iter(model.generate(ids, max_tokens=1, stop_ids=())))
        ended = time.monotonic()
        # The first prompt may also compile the program that reads prompts; a second does not. And
        # compiling goes on beside packing: what it adds to a start is what is left of it then.
        prompt = min(model.time_prompt(ids), ended - ready)
        parts = {
            "begun": begun,
            "ended": ended,
            "load": model.timings.load,
            "pack": model.timings.pack,
            "compile": max(ended - begun - model.timings.load - model.timings.pack - prompt, 0.0),
            "prompt": prompt,
        }
    print(json.dumps(parts))


if __name__ == "__main__":
    _child(*sys.argv[1:])
