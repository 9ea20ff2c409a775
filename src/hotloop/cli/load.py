"""hotloop load: how a server with OpenAI's API holds out against many clients."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import print_parts, stdout
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError


def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's root.")],
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", help="Which model (default: the first).", show_default=False),
    ] = None,
    clients: Annotated[
        int, typer.Option("--clients", min=1, max=1024, help="Requests in flight.")
    ] = 8,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests in all.")] = 64,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Words in a prompt.")] = 128,
    shared: Annotated[
        int, typer.Option("--shared", min=0, help="Words that all prompts begin with.")
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", min=1, help="Tokens of an answer at most.")
    ] = 128,
    temp: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option("-s", "--seed", min=0, help="Seed of the prompts.")] = 0,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", help="File with the key.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Load a server with many clients: tokens per second, and waits.

    Reports percentiles and histograms of the time to a first token and between tokens.
    """
    import asyncio

    from hotloop.bench.load import LoadError, Plan
    from hotloop.bench.load import load as ask
    from hotloop.bench.load_table import render

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no URL; give one such as http://127.0.0.1:8080.")
    plan = Plan(clients, requests, prompt, shared, max_tokens, temp, seed)
    key = api_key_file.read_text().split()[0] if api_key_file else None
    with progress_bar() as progress:
        done = 0

        def answered() -> None:
            nonlocal done
            done += 1
            progress(done, requests, "asking")

        result = asyncio.run(ask(url, plan, key, model, answered))
    if not result.good:
        raise LoadError(f"no request was answered; the first was told {result.errors[0]}")
    if as_json:
        json.dump(result.to_json(), sys.stdout, indent=2)
        print()
    else:
        print_parts(stdout(), render(result))
