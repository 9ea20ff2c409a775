"""hotloop cache: where models and compiled code are kept, and how to make room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hotloop.util import settings
from hotloop.util.errors import CacheError

app = typer.Typer(help="Show or empty the folder of pulled models and compiled code.")

#: What hotloop writes under the cache folder, which may hold other things, too.
CODE = ("code/*.o", "code/*.part", "machines/host-*")
MODELS = ("models/*.gguf", "models/pulling-*/**/*", "models/hub/**/*")


@app.callback(invoke_without_command=True)
def cache(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        path()
        size()


@app.command()
def path() -> None:
    """Print the cache folder."""
    print(settings.cache_dir())


@app.command()
def size() -> None:
    """Print how much room models and compiled code take."""
    for name, patterns in (("models", MODELS), ("code", CODE)):
        total = sum(file.stat().st_size for file in _files(patterns))
        print(f"{name:<8}{total / 1e6:>10,.1f} MB")


@app.command()
def clear(
    models: Annotated[bool, typer.Option("--models", help="The pulled models, too.")] = False,
) -> None:
    """Delete the compiled code, which comes back by itself."""
    files = list(_files(CODE + MODELS if models else CODE))
    freed = 0
    for file in files:
        try:
            freed += file.stat().st_size
            file.unlink()
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as error:
            raise CacheError(
                f"{file} cannot be deleted ({error.strerror}); delete it by hand."
            ) from None
    print(f"{len(files)} files deleted, {freed / 1e6:,.1f} MB.")


def _files(patterns: tuple[str, ...]) -> Iterator[Path]:
    """Regular files only: the hub's links to its blobs count once, and go with their targets."""
    for pattern in patterns:
        for file in settings.cache_dir().glob(pattern):
            if file.is_file() and not file.is_symlink():
                yield file
