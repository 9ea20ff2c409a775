"""Guards: what is decided about a request before anybody reads it, and what is noted after.

Plain ASGI, so that streams pass through untouched.
"""

import hmac
import time
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.serve.errors import ApiError, respond
from hotloop.serve.metrics import Metrics

#: What needs no key: the page itself, and the question whether the server is alive.
OPEN_PATHS = frozenset({"/", "/health", "/static/app.js", "/static/style.css"})
#: Where a scope has the way to the server that passes by everybody who only wants to see how a
#: response starts. What follows the start may take it.
STRAIGHT = "hotloop.straight"


class HostGuard:
    """Answers only to those of `hosts` that a request may call the server by; "*": to any.

    Starlette's TrustedHostMiddleware does that, too, but not in the shape that clients can read.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "*" in self._hosts:
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get("host", "")
        name = given.lower()
        if name in self._hosts or name.rpartition(":")[0] in self._hosts:  # with or without a port
            await self._app(scope, receive, send)
            return
        text = f"this server does not answer to the name {given!r:.80}; give it an API key file."
        await respond(ApiError(text, code="wrong_host"))(scope, receive, send)


class KeyGuard:
    """Lets requests pass that have one of `keys`; all of them, where there are none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        right = scheme.lower() == "bearer" and self._knows(key.strip().encode())
        if right:
            await self._app(scope, receive, send)
            return
        text = "this server wants an API key: send it as `Authorization: Bearer KEY`."
        if given:
            text = "the API key is wrong."
        error = ApiError(text, 401, code="invalid_api_key")
        await respond(error)(scope, receive, send)

    def _knows(self, key: bytes) -> bool:
        """Every key is compared, in a time that tells nothing about how much of it is right."""
        return sum(hmac.compare_digest(key, known) for known in self._keys) > 0


class BodyGuard:
    """Refuses bodies of more than `limit` bytes, by what they say or as they come."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = HTTPConnection(scope).headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            await respond(self._error())(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                # This kind alone passes through FastAPI's reading of a body.
                raise HTTPException(413, str(self._error()))
            return message

        await self._app(scope, counted, send)

    def _error(self) -> ApiError:
        return ApiError(f"the body is larger than {self._limit} bytes.", 413, code="too_large")


class Observer:
    """Counts answers by path and status, and times them. Unknown paths count as one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[STRAIGHT] = send
        started = time.perf_counter()
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.seconds.observe(time.perf_counter() - started)
