"""linear: y[t, n] = Σ_k x[t, k] · w[n, k], all tokens of the step times the rows of a tile."""

from llvmlite import ir

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_tiles import TOKENS
from hotloop.kernels.product import Product, product_scratch, takes_tiles
from hotloop.kernels.tile import OpSpec, Tile, kernel, row_stride
from hotloop.lang import Pointer, call, constant, current, f32, function, i64, ptr

#: A step of so many tokens is a prompt's, and its last block alone is not full: in tiles, what is
#: missing to sixteen tokens is computed of whatever lies there, which spares all code for fewer.
_PROMPT = 8 * TOKENS

_POINTERS = ("records", "packed", "y", "scratch")
_NUMBERS = ("stride", "first", "end", "count")


def _scratch(spec: OpSpec) -> int:
    return product_scratch(*spec.operands)


@kernel("linear", scratch=_scratch)
def linear(tile: Tile) -> None:
    x, weight = tile.spec.operands
    assert tile.result is not None
    stride = constant(row_stride(weight.shape[0]), i64)
    first, end = tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP
    pointers = [*tile.operands, tile.result, tile.scratch]
    call(_rows(x, weight), [*pointers, stride, first, end, tile.count])


def _rows(x: TensorType, weight: TensorType) -> ir.Function:
    """The function that computes groups of rows, made once for all weights that differ in nothing
    but how many rows they have: it is most of a program's code, and compiling it of a start."""
    module = current().module
    name = f"rows_{x.shape[0]}_{x.format.name}_{weight.format.name}_{weight.shape[1]}"
    if name not in module.functions:
        params = [*((each, ptr) for each in _POINTERS), *((each, i64) for each in _NUMBERS)]
        with function(module, name, params, noinline=True) as arguments:
            records, packed, y, scratch = [each for each in arguments if isinstance(each, Pointer)]
            stride, first, end, count = arguments[len(_POINTERS) :]
            out, least = y.cast(f32), 1
            if takes_tiles(x, weight) and x.shape[0] % TOKENS == 0 and x.shape[0] >= _PROMPT:
                count, least = (count + (TOKENS - 1)) // TOKENS * TOKENS, TOKENS
            product = Product(
                x,
                weight,
                packed=packed,
                records=records,
                count=count,
                scratch=scratch,
                place=lambda token: out.at(token * stride),
                usual=x.shape[0],
                least=least,
            )
            product.rows(first, end)
    return module.functions[name]
