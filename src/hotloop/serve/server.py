"""The process: a socket, uvicorn on it, and an end that loses nothing it need not lose."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from hotloop.serve.served import Served
from hotloop.serve.slice import take_short_slices
from hotloop.util.errors import UsageError

#: Names by which a machine calls itself.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Listen:
    """Where the server listens; `certificate` and `key` are PEM files, for TLS.

    `grace` is how many seconds running requests get when the process is asked to end.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    grace: float = 10.0

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    def url(self, port: int) -> str:
        """A URL that works from this machine."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else "::1" if self.host == "::" else self.host
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def bind(listen: Listen) -> socket.socket:
    """The socket, so that a port that is taken is known before a model is loaded."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((listen.host, listen.port))
    except OSError as error:
        sock.close()
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot listen on {listen.host} port {listen.port}: {reason}; give another --port."
        ) from None
    return sock


def check_tls(certificate: Path, key: Path) -> None:
    """Raise where the files cannot be used, before a model is loaded."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: b"")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        raise UsageError(
            f"{certificate} and {key} are no certificate and its key in PEM ({reason})."
        ) from None


def serve_forever(app: FastAPI, served: Served, listen: Listen, sock: socket.socket) -> None:
    """Answer until SIGTERM or SIGINT. Then take nothing new, let what runs go on for `grace`
    seconds, cancel the rest, and return. A second signal ends the grace at once.

    Log lines hold no prompts: uvicorn writes methods, paths and statuses.
    """
    config = uvicorn.Config(
        app,
        log_level="info",
        ws="none",
        lifespan="off",
        server_header=False,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        timeout_graceful_shutdown=int(listen.grace) + 5,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _Server(config, served, listen.grace)
    take_short_slices()
    gc.freeze()  # the model is no garbage, and need not be looked at between tokens
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))


class _Server(uvicorn.Server):
    """uvicorn, whose first signal closes the engine; with that, all streams end."""

    def __init__(self, config: uvicorn.Config, served: Served, grace: float) -> None:
        super().__init__(config)
        self._engine = served.engine
        self._grace = grace

    def handle_exit(self, sig: int, frame: object) -> None:
        again = self.should_exit
        self.should_exit = True
        grace = 0.0 if again or sig == signal.SIGINT else self._grace
        threading.Thread(target=self._engine.close, args=(grace,), name="hotloop-close").start()
