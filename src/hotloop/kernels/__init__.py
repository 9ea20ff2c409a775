"""Kernels: how each op is compiled, a file per family; importing the package registers them all."""

from hotloop.kernels import (
    attend,
    attention,
    cache,
    code_books,
    elementwise,
    embed,
    emit,
    experts,
    five_bit,
    k_quants,
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
    "code_books",
    "elementwise",
    "embed",
    "emit",
    "experts",
    "five_bit",
    "k_quants",
    "linear",
    "norm",
    "quantise",
    "rope",
    "route",
    "sampling",
]
