"""Load a model for a command, with a progress bar where it takes long."""

from typing import TYPE_CHECKING

from hotloop.cli.progress import progress_bar

if TYPE_CHECKING:
    from hotloop.api import Model


def load_model(
    name: str | None,
    threads: int | None = None,
    schedule: str = "tokens",
    activations: str = "q8",
    context: int | None = None,
    *,
    kv_cache: str | None = None,
    quantize: str | None = None,
    speculate: int = 0,
) -> "Model":
    """`hotloop.api.load`, whose `Model` the caller closes."""
    from hotloop.api import load

    with progress_bar() as progress:
        return load(
            name,
            threads=threads,
            schedule=schedule,
            activations=activations,
            context=context,
            kv_cache=kv_cache,
            quantize=quantize,
            speculate=speculate,
            progress=progress,
        )
