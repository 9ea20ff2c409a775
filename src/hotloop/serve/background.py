"""Work on text that would hold up the event loop: templates, tokenizers, schemas.

Few threads, so that requests that come in a crowd take neither the engine's cores nor, each with a
heap of its own, its memory.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(2, "hotloop-text")


async def in_background(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which runs in a thread as soon as one of them is free."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: work(*args, **kwargs))
