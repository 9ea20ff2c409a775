"""Kernels: how each op is compiled, a file per family; importing the package registers them all."""

from hotloop.kernels import (
    attend,
    attention,
    cache,
    elementwise,
    embed,
    emit,
    experts,
    linear,
    norm,
    quantise,
    rope,
    route,
    sampling,
)

__all__ = [
    "attend",
    "attention",
    "cache",
    "elementwise",
    "embed",
    "emit",
    "experts",
    "linear",
    "norm",
    "quantise",
    "rope",
    "route",
    "sampling",
]
