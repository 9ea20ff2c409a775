"""hotloop: a language model becomes one loop, and a whole generation one launch."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "Token", "load"]

if TYPE_CHECKING:
    from hotloop.api import Model, Token, load


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: `hotloop --help` needs none of it."""
    if name in __all__:
        from hotloop import api

        return getattr(api, name)
    raise AttributeError(f"module 'hotloop' has no attribute {name!r}")
