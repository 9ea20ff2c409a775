"""From a request's fields to a generation's options: what both endpoints for text share."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.sampling import Sampling
from hotloop.runtime.sequence import TopLogprobs
from hotloop.serve.errors import ApiError
from hotloop.serve.generation import Options
from hotloop.serve.grammar import Rules
from hotloop.serve.schemas import MAX_CHOICES, Sampled
from hotloop.serve.served import Served

#: What OpenAI documents as a ban.
_BAN = -100


def options(
    served: Served,
    request: Sampled,
    max_tokens: int | None,
    logprobs: int | None,
    constraint: Rules | None = None,
    special: bool = False,
    echo: bool = False,
) -> Options:
    """`Options` for `request`. Without a seed, a random one is used."""
    seed = secrets.randbits(64) if request.seed is None else request.seed % 2**64
    sampling = Sampling(
        temperature=request.temperature,
        seed=seed,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repeat_penalty=request.repetition_penalty,
        repeat_last_n=-1,
        stop_ids=() if request.ignore_eos and constraint is None else served.stop_ids,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
    )
    bias = _bias(served, request.logit_bias)
    return Options(
        max_tokens, sampling, request.n, request.stops, bias, logprobs, constraint, special, echo
    )


def wants_usage(request: Sampled) -> bool:
    """Whether a stream is to end with its usage."""
    if request.stream_options is None:
        return False
    if not request.stream:
        raise ApiError("stream_options needs stream to be true.", param="stream_options")
    return request.stream_options.include_usage


def check_count(prompts: int, n: int) -> None:
    """Raise where a request asks for too many answers."""
    if prompts * n > MAX_CHOICES:
        text = f"{prompts} prompts with n = {n} are {prompts * n} choices; at most {MAX_CHOICES}."
        raise ApiError(text, param="n")


def prompts(
    served: Served,
    given: str | Sequence[str | int | list[int]],
    param: str,
    encode: Callable[[str, str], list[int]],
) -> list[list[int]]:
    """The tokens of each prompt: of a text or tokens, or of several of either."""
    if isinstance(given, str):
        given = [given]
    if not given:
        raise ApiError(f"{param} is empty.", param=param)
    tokens = [token for token in given if isinstance(token, int)]
    found = []
    for one in [tokens] if tokens else given:
        if isinstance(one, str):
            one = encode(one, param)
        assert isinstance(one, list)
        served.check_tokens(one, param)
        served.check_prompt(one, param)
        found.append(one)
    return found


def _bias(served: Served, by_token: dict[str, float] | None) -> NDArray[np.float32] | None:
    if not by_token:
        return None
    bias = np.zeros(served.vocab, np.float32)
    for text, value in by_token.items():
        token = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if not 0 <= token < served.vocab:
            raise ApiError(
                f"logit_bias: {text!r:.40} is no token id; give one from 0 to {served.vocab - 1}.",
                param="logit_bias",
            )
        bias[token] = -np.inf if value <= _BAN else value
    return bias


def token_logprobs(served: Served, token: int, found: TopLogprobs) -> dict[str, Any]:
    """The JSON of `schemas.TokenLogprob`."""
    top = [
        _one(served, token, logprob)
        for token, logprob in zip(found.tokens, found.logprobs, strict=True)
    ]
    return _one(served, token, found.chosen) | {"top_logprobs": top}


def _one(served: Served, token: int, logprob: float) -> dict[str, Any]:
    piece = served.tokenizer.codec.piece(token)
    text = piece.decode(errors="replace")
    return {"token": text, "logprob": finite(logprob), "bytes": list(piece)}


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what is impossible."""
    return max(logprob, -9999.0)
