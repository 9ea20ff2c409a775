"""/v1/chat/completions."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from hotloop import __version__
from hotloop.runtime.sequence import Finish
from hotloop.serve.answers import answer
from hotloop.serve.background import in_background
from hotloop.serve.errors import ApiError, as_api_error
from hotloop.serve.generation import Delta, Generation, Scored
from hotloop.serve.grammar import Grammars, Rules
from hotloop.serve.requests import check_count, options, token_logprobs, wants_usage
from hotloop.serve.schemas import ChatRequest, JsonSchemaFormat, NamedTool, TextFormat, ToolCall
from hotloop.serve.served import Served
from hotloop.serve.tools import CallFinder, call_schema, offered, template_messages
from hotloop.util.errors import HotloopError


async def chat(served: Served, grammars: Grammars, http: Request, request: ChatRequest) -> Response:
    """Answer a conversation. Rendering, tokenising and compiling a schema leave the event loop."""
    served.check_name(request.model)
    check_count(1, request.n)
    usage = wants_usage(request)
    _check(served, request)
    prompt = await in_background(_prompt, served, request)
    constraint = await in_background(_constraint, grammars, request)
    max_tokens = request.max_completion_tokens
    if max_tokens is None:
        max_tokens = request.max_tokens
    generation = Generation(
        served,
        [prompt],
        options(
            served,
            request,
            max_tokens,
            (request.top_logprobs or 0) if request.logprobs else None,
            constraint,
            special=bool(offered(request)),
        ),
    )
    return await answer(http, generation, ChatAnswer(served, request, usage), request.stream, usage)


def _check(served: Served, request: ChatRequest) -> None:
    """What the fields say together."""
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if request.tools and not served.takes_tools:
        raise ApiError(f"the chat template of {served.name} has no place for tools.", param="tools")
    choice = request.tool_choice
    if choice not in (None, "none") and not offered(request):
        name = choice.function.name if isinstance(choice, NamedTool) else choice
        raise ApiError(f"tool_choice: tools has none for {name!r}.", param="tool_choice")
    ways = [request.grammar is not None, _demands_call(request)]
    ways.append(not isinstance(request.response_format, TextFormat | None))
    if sum(ways) > 1:
        raise ApiError(
            "grammar, response_format and a tool_choice that demands a call exclude each other.",
            param="response_format",
        )


def _demands_call(request: ChatRequest) -> bool:
    return request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)


def _prompt(served: Served, request: ChatRequest) -> list[int]:
    functions = offered(request)
    tools = [
        {"type": "function", "function": function.model_dump(exclude_none=True)}
        for function in functions
    ]
    names: dict[str, Any] = {"add_generation_prompt": True}
    if request.reasoning_effort is not None:
        names["reasoning_effort"] = request.reasoning_effort
    names |= request.chat_template_kwargs or {}
    for name in ("messages", "tools", "bos_token", "eos_token", "template"):
        if name in names:
            raise ApiError(f"chat_template_kwargs cannot set {name}.", param="chat_template_kwargs")
    try:
        tokens = served.encode_chat(template_messages(request.messages), tools or None, names)
        served.check_prompt(tokens, "messages")
        return tokens
    except HotloopError as error:
        raise as_api_error(error, "messages") from None


def _constraint(grammars: Grammars, request: ChatRequest) -> Rules | None:
    if request.grammar is not None:
        return grammars.lark(request.grammar, "grammar")
    if _demands_call(request):
        return grammars.schema(call_schema(offered(request)), "tools")
    match request.response_format:
        case None | TextFormat():
            return None
        case JsonSchemaFormat(json_schema=given):
            schema = given.schema_ if given.schema_ is not None else {}
            return grammars.schema(schema, "response_format.json_schema.schema")
        case _:
            return grammars.schema({"type": "object"}, "response_format")


class ChatAnswer:
    """Chat completions and their chunks (`hotloop.serve.answers.Answer`)."""

    def __init__(self, served: Served, request: ChatRequest, usage: bool) -> None:
        self._served = served
        self._request = request
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": f"hotloop-{__version__}",
        }
        if usage:
            self._head["usage"] = None  # as OpenAI has it, in all events but the last
        names = [function.name for function in offered(request)]
        demands = _demands_call(request)
        self._finders = [CallFinder(names, demands) for _ in range(request.n)] if names else None

    def opening(self) -> Iterator[dict[str, Any]]:
        for index in range(self._request.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def events(self, delta: Delta) -> Iterator[dict[str, Any]]:
        text, calls = self._split(delta)
        logprobs = self._logprobs(delta.logprobs)
        if text or logprobs:
            yield self._chunk(delta.index, {"content": text} if text else {}, logprobs)
        if calls:
            listed = [
                {"index": at} | call.model_dump(exclude_none=True) for at, call in enumerate(calls)
            ]
            yield self._chunk(delta.index, {"tool_calls": listed})
        if delta.finish is not None:
            reason = self._reason(delta.finish, calls)
            yield self._chunk(delta.index, {}, finish_reason=reason)

    def text_event(self, index: int, text: str) -> dict[str, Any] | None:
        plain = self._finders is None and not self._request.logprobs
        return self._chunk(index, {"content": text}) if plain else None

    def usage_event(self, usage: dict[str, object]) -> dict[str, Any]:
        chunk = self._head | {"object": "chat.completion.chunk", "choices": []}
        return chunk | {"usage": usage}

    def whole(self, deltas: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        choices = [
            self._choice(index, [delta for delta in deltas if delta.index == index])
            for index in range(self._request.n)
        ]
        return self._head | {"object": "chat.completion", "choices": choices, "usage": usage}

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        texts, calls = [], []
        for delta in deltas:
            text, found = self._split(delta)
            texts.append(text)
            calls += found
        content = "".join(texts)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in calls]
        finish = deltas[-1].finish
        assert finish is not None
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs([pair for delta in deltas for pair in delta.logprobs]),
            "finish_reason": self._reason(finish, calls),
        }

    def _split(self, delta: Delta) -> tuple[str, list[ToolCall]]:
        """What is text in a delta, and the calls, which are complete at the end only."""
        if self._finders is None:
            return delta.text, []
        finder = self._finders[delta.index]
        text = finder.push(delta.text)
        if delta.finish is None:
            return text, []
        rest, calls = finder.flush()
        return text + rest, calls

    def _reason(self, finish: Finish, calls: list[ToolCall]) -> str:
        """OpenAI's rule: a call that was asked for by name is an ordinary stop."""
        named = isinstance(self._request.tool_choice, NamedTool)
        return "tool_calls" if calls and not named else finish.value

    def _logprobs(self, found: Sequence[Scored]) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        content = [token_logprobs(self._served, token, top) for token, top in found if top]
        return {"content": content}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._head | {"object": "chat.completion.chunk", "choices": [choice]}
