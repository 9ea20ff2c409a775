"""From a generation to a response: whole, or as a stream of server-sent events.

An `Answer` knows one endpoint's JSON. What is the same for all of them is here: a client that goes
away ends its generation, and an error in the middle of a stream is its last event.
"""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from json.encoder import encode_basestring
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from hotloop.serve.errors import ApiError
from hotloop.serve.generation import Delta, Generation
from hotloop.serve.guards import STRAIGHT

T = TypeVar("T")

#: nginx's: the client closed the connection. Nobody is there to read it, but logs and metrics do.
CLIENT_CLOSED_REQUEST = 499
#: Stands for the text of an event; no model's name holds it.
_MARK = "\0text\0"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Answer(Protocol):
    """The JSON of one endpoint."""

    def opening(self) -> Iterator[dict[str, Any]]:
        """Events of a stream before there is any text."""

    def events(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Events that `delta` becomes."""

    def text_event(self, index: int, text: str) -> dict[str, Any] | None:
        """The only event of a delta with this text and nothing else; None if there are others."""

    def usage_event(self, usage: dict[str, object]) -> dict[str, Any]:
        """The event that has the usage, for those who asked."""

    def whole(self, deltas: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        """The response where nothing is streamed."""


async def answer(
    request: Request, generation: Generation, made_of: Answer, stream: bool, usage: bool
) -> Response:
    """Run `generation` and respond; `usage` ends a stream with what was used."""
    generation.submit()
    if stream:
        return _EventStream(generation, made_of, usage)
    try:
        deltas = await unless_gone(request.receive, _collect(generation))
    finally:
        generation.close()
    if deltas is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse(made_of.whole(deltas, generation.usage()))


async def _collect(generation: Generation) -> list[Delta]:
    collected: list[Delta] = []
    while deltas := await generation.more():
        collected += deltas
    return collected


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None, and it is cancelled, once the client has gone away."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = (asyncio.create_task(work), asyncio.create_task(gone()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()


class _EventStream(Response):
    """Server-sent events. However it ends, also before it began, the generation is closed.

    One task goes from the engine's tokens to the connection's bytes: on the way of each token there
    are no more calls than need be.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, made_of: Answer, usage: bool) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._generation = generation
        self._made_of = made_of
        self._usage = usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._stream(send, scope.get(STRAIGHT, send)))
        finally:
            self._generation.close()

    async def _stream(self, send: Send, straight: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        made_of, generation = self._made_of, self._generation
        if opening := b"".join(map(_sse, made_of.opening())):
            await straight(_body(opening))
        texts = [_TextEvents.of(made_of, choice.index) for choice in generation.choices]
        try:
            while deltas := await generation.more():
                written = []
                for delta in deltas:
                    text_events = texts[delta.index]
                    if text_events is not None and delta.finish is None:
                        written.append(text_events.write(delta.text))
                    else:
                        written += map(_sse, made_of.events(delta))
                body = written[0] if len(written) == 1 else b"".join(written)
                await straight({"type": "http.response.body", "body": body, "more_body": True})
            usage = _sse(made_of.usage_event(generation.usage())) if self._usage else b""
            end = usage + b"data: [DONE]\n\n"
        except ApiError as error:
            end = _sse(error.body())
        await straight(_body(end, more=False))


def _body(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class _TextEvents:
    """Events that differ by their text alone, which most are: between two tokens of a launch there
    is no time to make the rest of them again."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head, self._tail = head, tail

    @staticmethod
    def of(made_of: Answer, index: int) -> "_TextEvents | None":
        event = made_of.text_event(index, _MARK)
        if event is None:
            return None
        head, _, tail = _sse(event).partition(encode_basestring(_MARK).encode())
        return _TextEvents(head, tail)

    def write(self, text: str) -> bytes:
        return self._head + encode_basestring(text).encode() + self._tail


def _sse(event: dict[str, Any]) -> bytes:
    return f"data: {_JSON.encode(event)}\n\n".encode()
