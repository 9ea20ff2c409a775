"""Kernels: how each op is compiled, a file per family; importing the package registers them all."""

from hotloop.kernels import (
    attend,
    attention,
    cache,
    elementwise,
    embed,
    emit,
    linear,
    norm,
    quantise,
    rope,
    sampling,
)

__all__ = [
    "attend",
    "attention",
    "cache",
    "elementwise",
    "embed",
    "emit",
    "linear",
    "norm",
    "quantise",
    "rope",
    "sampling",
]
