"""/v1/embeddings: a vector for each text, from the hidden states of the model that is served.

The engine reads the texts as it reads prompts, in blocks between the tokens of running streams.
"""

import asyncio
import base64
import contextlib
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from hotloop.runtime.pooling import Pooled
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.sequence import Output, Sequence
from hotloop.serve.answers import CLIENT_CLOSED_REQUEST, unless_gone
from hotloop.serve.background import in_background
from hotloop.serve.errors import ApiError
from hotloop.serve.generation import FAILURES, failure
from hotloop.serve.requests import prompts
from hotloop.serve.schemas import EmbeddingsRequest
from hotloop.serve.served import Served

#: OpenAI's limit.
MAX_INPUTS = 2048


async def embed(served: Served, http: Request, request: EmbeddingsRequest) -> Response:
    """Embed one or several texts."""
    served.check_name(request.model)
    if request.dimensions not in (None, served.width):
        raise ApiError(
            f"dimensions: the vectors of {served.name} have {served.width} numbers and mean "
            "nothing when cut; leave it out.",
            param="dimensions",
        )
    inputs = await in_background(prompts, served, request.input, "input", served.encode_text)
    if len(inputs) > MAX_INPUTS:
        raise ApiError(f"input has {len(inputs)} texts; at most {MAX_INPUTS}.", param="input")
    vectors = await unless_gone(http.receive, _vectors(served, inputs))
    if vectors is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    read = sum(len(tokens) for tokens in inputs)
    data = [
        {"object": "embedding", "index": at, "embedding": _written(vector, request)}
        for at, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


def _written(vector: NDArray[Any], request: EmbeddingsRequest) -> str | list[float]:
    if request.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


async def _vectors(served: Served, inputs: list[list[int]]) -> list[NDArray[Any]]:
    """float32 [width] for each input. A few are with the engine at a time, so that one request
    does not fill its queue."""
    few = served.engine.executor.rows
    vectors = []
    for start in range(0, len(inputs), few):
        vectors += await _together(served, inputs[start : start + few])
    return vectors


async def _together(served: Served, inputs: list[list[int]]) -> list[NDArray[Any]]:
    loop = asyncio.get_running_loop()
    outputs: asyncio.Queue[Output] = asyncio.Queue()

    def sink(output: Output) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that has been closed
            loop.call_soon_threadsafe(outputs.put_nowait, output)

    pools = [Pooled(served.pooling) for _ in inputs]
    sequences = [
        Sequence(list(tokens), len(tokens), Sampling(), sink, reader=pooled)
        for tokens, pooled in zip(inputs, pools, strict=True)
    ]
    served.engine.submit(sequences)
    try:
        for _ in sequences:
            output = await outputs.get()
            if output.finish in FAILURES:
                raise failure(served, output)
    finally:
        served.engine.cancel(sequences)
    return [pooled.vector for pooled in pools]
