"""/v1/completions."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from hotloop import __version__
from hotloop.runtime.sequence import TopLogprobs
from hotloop.serve.answers import answer
from hotloop.serve.background import in_background
from hotloop.serve.errors import ApiError
from hotloop.serve.generation import Delta, Generation, Scored
from hotloop.serve.grammar import Grammars
from hotloop.serve.requests import check_count, finite, options, prompts, wants_usage
from hotloop.serve.schemas import CompletionRequest
from hotloop.serve.served import Served

#: OpenAI's default.
DEFAULT_MAX_TOKENS = 16


async def complete(
    served: Served, grammars: Grammars, http: Request, request: CompletionRequest
) -> Response:
    """Continue one or several texts."""
    served.check_name(request.model)
    if request.best_of not in (None, request.n):
        raise ApiError(f"best_of must be n ({request.n}), or left out.", param="best_of")
    usage = wants_usage(request)
    found = await in_background(_prompts, served, request)
    check_count(len(found), request.n)
    if request.echo and request.logprobs is not None:
        await in_background(served.engine.executor.prepare_scoring)
    constraint = None
    if request.grammar is not None:
        constraint = await in_background(grammars.lark, request.grammar, "grammar")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    generation = Generation(
        served,
        found,
        options(
            served,
            request,
            max_tokens,
            request.logprobs,
            constraint,
            echo=request.echo,
        ),
    )
    made_of = CompletionAnswer(served, request, len(generation.choices), usage)
    return await answer(http, generation, made_of, request.stream, usage)


def _prompts(served: Served, request: CompletionRequest) -> list[list[int]]:
    if not request.suffix:
        return prompts(served, request.prompt, "prompt", served.encode_prompt)
    if request.echo:
        raise ApiError("echo and suffix exclude each other.", param="suffix")
    return [served.encode_infill(request.prompt, request.suffix)]


class CompletionAnswer:
    """Completions and their chunks (`hotloop.serve.answers.Answer`)."""

    def __init__(
        self, served: Served, request: CompletionRequest, choices: int, usage: bool
    ) -> None:
        self._served = served
        self._request = request
        self._offsets = [0] * choices
        self._head: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": f"hotloop-{__version__}",
        }
        if usage:
            self._head["usage"] = None  # as OpenAI has it, in all events but the last

    def opening(self) -> Iterator[dict[str, Any]]:
        yield from ()

    def events(self, delta: Delta) -> Iterator[dict[str, Any]]:
        finish = delta.finish.value if delta.finish else None
        logprobs = self._logprobs(delta.index, delta.logprobs)
        yield self._chunk(delta.index, delta.text, logprobs, finish)

    def text_event(self, index: int, text: str) -> dict[str, Any] | None:
        return self._chunk(index, text, None, None) if self._request.logprobs is None else None

    def usage_event(self, usage: dict[str, object]) -> dict[str, Any]:
        return self._head | {"choices": [], "usage": usage}

    def whole(self, deltas: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        choices = [
            self._choice(index, [delta for delta in deltas if delta.index == index])
            for index in range(len(self._offsets))
        ]
        return self._head | {"choices": choices, "usage": usage}

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        finish = deltas[-1].finish
        assert finish is not None
        return {
            "index": index,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": self._logprobs(index, [one for delta in deltas for one in delta.logprobs]),
            "finish_reason": finish.value,
        }

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._head | {"choices": [choice]}

    def _logprobs(self, index: int, found: Sequence[Scored]) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        tokenizer = self._served.tokenizer
        tokens, offsets = [], []
        for token, _ in found:
            tokens.append(tokenizer.token_text(token))
            offsets.append(self._offsets[index])
            if not tokenizer.codec.is_special(token):  # one that has no place in the text
                self._offsets[index] += len(tokens[-1])
        return {
            "tokens": tokens,
            "token_logprobs": [top and finite(top.chosen) for _, top in found],
            "top_logprobs": [top and self._top(top) for _, top in found],
            "text_offset": offsets,
        }

    def _top(self, top: TopLogprobs) -> dict[str, float]:
        texts = map(self._served.tokenizer.token_text, top.tokens)
        return dict(zip(texts, map(finite, top.logprobs), strict=True))
