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
from hotloop.serve.generation import Delta, Generation
from hotloop.serve.grammar import Grammars
from hotloop.serve.requests import check_count, finite, options
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
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options needs stream to be true.", param="stream_options")
    if request.echo and request.logprobs is not None:
        raise ApiError("echo has no logprobs for the prompt; ask for one of them.", param="echo")
    prompts = await in_background(_prompts, served, request)
    check_count(len(prompts), request.n)
    constraint = None
    if request.grammar is not None:
        constraint = await in_background(grammars.lark, request.grammar, "grammar")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    generation = Generation(
        served,
        prompts,
        options(served, request, max_tokens, request.logprobs, constraint),
    )
    usage = request.stream_options is not None and request.stream_options.include_usage
    made_of = CompletionAnswer(served, request, prompts)
    return await answer(http, generation, made_of, request.stream, usage)


def _prompts(served: Served, request: CompletionRequest) -> list[list[int]]:
    given: Sequence[str | int | list[int]] = (
        [request.prompt] if isinstance(request.prompt, str) else request.prompt
    )
    if not given:
        raise ApiError("prompt is empty.", param="prompt")
    tokens = [token for token in given if isinstance(token, int)]
    prompts = [tokens] if tokens else [one for one in given if not isinstance(one, int)]
    found = [_tokens(served, prompt) for prompt in prompts]
    for one in found:
        served.check_prompt(one, "prompt")
    return found


def _tokens(served: Served, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return served.encode_prompt(prompt, "prompt")
    wrong = next((token for token in prompt if token >= served.vocab), None)
    if wrong is not None:
        text = f"there is no token {wrong}; the model has 0 to {served.vocab - 1}."
        raise ApiError(text, param="prompt")
    return prompt


class CompletionAnswer:
    """Completions and their chunks (`hotloop.serve.answers.Answer`)."""

    def __init__(
        self, served: Served, request: CompletionRequest, prompts: list[list[int]]
    ) -> None:
        self._served = served
        self._request = request
        self._echoed = [self._echo(prompt) for prompt in prompts for _ in range(request.n)]
        self._offsets = [len(text) for text in self._echoed]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": f"hotloop-{__version__}",
        }

    def _echo(self, prompt: list[int]) -> str:
        if not self._request.echo:
            return ""
        return self._served.tokenizer.decode(prompt, special=False)

    def opening(self) -> Iterator[dict[str, Any]]:
        for index, text in enumerate(self._echoed):
            if text:
                yield self._chunk(index, text, None, None)

    def events(self, delta: Delta) -> Iterator[dict[str, Any]]:
        finish = delta.finish.value if delta.finish else None
        yield self._chunk(
            delta.index, delta.text, self._logprobs(delta.index, delta.logprobs), finish
        )

    def usage_event(self, usage: dict[str, object]) -> dict[str, Any]:
        return self._head | {"choices": [], "usage": usage}

    def whole(self, deltas: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        choices = [
            self._choice(index, [delta for delta in deltas if delta.index == index])
            for index in range(len(self._echoed))
        ]
        return self._head | {"choices": choices, "usage": usage}

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        finish = deltas[-1].finish
        assert finish is not None
        return {
            "index": index,
            "text": self._echoed[index] + "".join(delta.text for delta in deltas),
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

    def _logprobs(self, index: int, found: list[tuple[int, TopLogprobs]]) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        text_of = self._served.tokenizer.token_text
        tokens = [text_of(token) for token, _ in found]
        offsets = []
        for text in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [finite(top.chosen) for _, top in found],
            "top_logprobs": [
                {
                    text_of(token): finite(logprob)
                    for token, logprob in zip(top.tokens, top.logprobs, strict=True)
                }
                for _, top in found
            ],
            "text_offset": offsets,
        }
