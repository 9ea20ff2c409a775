"""hotloop pull: fetch a model into the cache."""

from typing import Annotated

import typer

from hotloop.cli.progress import progress_bar


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A known name, or hf:owner/repo/file.gguf.")
    ] = "smollm2",
) -> None:
    """Fetch a model into the cache, and print its path.

    A model that is there already is checked.
    """
    from hotloop.frontends import store

    with progress_bar() as progress:
        path = store.pull(name, progress)
    print(path)
