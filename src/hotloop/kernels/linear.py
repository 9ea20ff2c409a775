"""linear: y[t, n] = Σ_k x[t, k] · w[n, k], all tokens of the step times the rows of a tile."""

from hotloop.ir.ops import GROUP
from hotloop.kernels.product import Product, product_scratch
from hotloop.kernels.tile import OpSpec, Tile, kernel, row_stride
from hotloop.lang import f32


def _scratch(spec: OpSpec) -> int:
    return product_scratch(*spec.operands)


@kernel("linear", scratch=_scratch)
def linear(tile: Tile) -> None:
    x, weight = tile.spec.operands
    assert tile.result is not None
    y, stride = tile.result.cast(f32), row_stride(weight.shape[0])
    product = Product(
        x,
        weight,
        packed=tile.operands[1],
        records=tile.operands[0],
        count=tile.count,
        scratch=tile.scratch,
        place=lambda token: y.at(token * stride),
        usual=x.shape[0],
    )
    product.rows(tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP)
