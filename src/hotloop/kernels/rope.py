"""rope: rotary position embedding (Su et al., 2021, arXiv 2104.09864), from a table of angles."""

from hotloop.kernels.cache import position_of
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Pointer, Value, f32, loop, strip


@kernel("rope")
def rope(tile: Tile) -> None:
    """The table is a weight: its rows follow each other unpadded.

    Row first_row + p holds the cosines of position p, one for each pair that turns, then the sines.
    """
    x_type, pos_type, table_type = tile.spec.operands
    turned = table_type.shape[1]
    head_dim = int(tile.spec.attr("head_dim"))
    rotate = _rotate_half if tile.spec.attr("pairing") == "half" else _rotate_interleaved
    x, pos, table = tile.operands
    assert tile.result is not None
    first_row = tile.scalar("first_row")
    for token in loop(tile.count):
        angles = table.cast(f32).at((position_of(pos, pos_type, token) + first_row) * turned)
        row = token * row_stride(x_type.shape[1])
        for head in loop(tile.hi, tile.lo, head_dim):
            source, out = x.cast(f32).at(row + head), tile.result.cast(f32).at(row + head)
            rotate(source, out, angles, turned // 2)
            for i, lanes in strip(head_dim, turned):
                out.store(source.load(i, lanes), i)


def _rotate_half(x: Pointer, y: Pointer, angles: Pointer, half: int) -> None:
    """Pairs (i, i + half)."""
    for i, lanes in strip(half):
        cos, sin = angles.load(i, lanes), angles.load(i + half, lanes)
        a, b = _turn(x.load(i, lanes), x.load(i + half, lanes), cos, sin)
        y.store(a, i)
        y.store(b, i + half)


def _rotate_interleaved(x: Pointer, y: Pointer, angles: Pointer, half: int) -> None:
    """Pairs (2i, 2i + 1)."""
    for i, lanes in strip(half):
        cos, sin = angles.load(i, lanes), angles.load(i + half, lanes)
        if lanes:
            pairs = x.load(i * 2, 2 * lanes)
            even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
            a, b = _turn(pairs.shuffle(even), pairs.shuffle(odd), cos, sin)
            y.store(a.shuffle([n // 2 + n % 2 * lanes for n in range(2 * lanes)], b), i * 2)
        else:
            a, b = _turn(x.load(i * 2), x.load(i * 2 + 1), cos, sin)
            y.store(a, i * 2)
            y.store(b, i * 2 + 1)


def _turn(a: Value, b: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    return a * cos - b * sin, a * sin + b * cos
