"""hotloop serve: OpenAI's API for one model, and a page to talk to it."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hotloop.cli import options
from hotloop.cli.loading import load_model
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from hotloop.serve.app import Access

KEY_BYTES = 1 << 16


def serve(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any.")
    ] = 8080,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What the model is called (default: its file's name)."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, help="Requests that run together.")
    ] = 8,
    context: options.Context = None,
    pages: Annotated[
        int | None,
        typer.Option(
            "--pages",
            min=1,
            help="Pages of the KV cache, 256 positions each (default: for two full contexts).",
            show_default=False,
        ),
    ] = None,
    threads: options.Threads = None,
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    speculate: options.Speculate = 0,
    pooling: Annotated[
        Literal["mean", "last"] | None,
        typer.Option(
            "--pooling",
            help="Embeddings: which hidden states (default: the model's file, or the last).",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=0, help="Requests that may wait; more get a 429.")
    ] = 64,
    body_limit: Annotated[
        int, typer.Option("--body-limit", min=1, help="Bytes of a request at most.")
    ] = 4 << 20,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", help="File of API keys, one a line.", show_default=False),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors", help="Web origin that may ask; * for all. Repeatable.", show_default=False
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", help="Certificate in PEM, for HTTPS.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", help="The certificate's key in PEM.", show_default=False),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds to finish in, after SIGTERM.")
    ] = 10.0,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it.

    The first line on stdout is the URL, the second a command that asks for an answer.
    """
    try:
        from hotloop.serve.app import make_app
        from hotloop.serve.load_served import make_served
        from hotloop.serve.server import Listen, bind, check_tls, serve_forever
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed; serving needs pip install 'hotloop[serve]'."
        ) from None

    for file in (tls_cert, tls_key, api_key_file):
        if file is not None and not file.is_file():
            raise UsageError(f"there is no file {file}.")
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("TLS needs both --tls-cert and --tls-key.")
    if tls_cert is not None and tls_key is not None:
        check_tls(tls_cert, tls_key)
    listen = Listen(host, port, tls_cert, tls_key, grace)
    keys = _keys(api_key_file)
    access = _access(keys, tuple(cors or ()), listen.local, body_limit)
    with ExitStack() as stack:
        sock = stack.enter_context(bind(listen))
        chosen = options.model_name(argument, model)
        loaded = stack.enter_context(
            load_model(
                chosen,
                threads,
                activations=activations,
                context=context,
                kv_cache=kv_cache,
                quantize=quantize,
                speculate=speculate,
            )
        )
        served = stack.enter_context(make_served(loaded, name, parallel, pages, queue, pooling))
        sock.listen()  # so that the URL works as soon as it is printed
        url = listen.url(sock.getsockname()[1])
        print(url)
        print(_curl(url, served.name, served.takes_chat, bool(keys)), flush=True)
        serve_forever(make_app(served, access), served, listen, sock)
    print("stopped.", file=sys.stderr)


def _access(keys: tuple[str, ...], origins: tuple[str, ...], local: bool, body: int) -> "Access":
    from hotloop.serve.app import Access
    from hotloop.serve.server import LOCAL_HOSTS

    hosts = LOCAL_HOSTS if local and not keys else ("*",)
    return Access(keys, origins, hosts, body)


def _keys(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    with file.open("rb") as opened:
        text = opened.read(KEY_BYTES).decode(errors="replace")
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        raise UsageError(f"{file} has no API key; write one on a line.")
    return keys


def _curl(url: str, name: str, chat: bool, key: bool) -> str:
    """A command that works as it stands, but for the key, which it does not show."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    if chat:
        path = "chat/completions"
        body = f'{{"model": "{quoted}", "messages": [{{"role": "user", "content": "Hi!"}}]}}'
    else:
        path, body = "completions", f'{{"model": "{quoted}", "prompt": "Once upon a time"}}'
    words = ["curl", f"{url}/v1/{path}", "-H", "Content-Type: application/json"]
    if url.startswith("https"):
        words.insert(1, "--insecure")
    if key:
        words += ["-H", "Authorization: Bearer YOUR_KEY"]
    return shlex.join([*words, "-d", body])
