"""Sums of a block's products for pairs of rows and of tokens, as AArch64's `smmla` takes them.

The instruction multiplies two rows of eight columns with two tokens of as many. Packed weights
hold four columns of a row side by side, so two vectors, eight columns of eight rows, are zipped
into four pairs of rows; once for all tokens.
"""

from collections.abc import Iterator

from hotloop.lang import Pointer, Value, dot8_pairs, i8, i32, i64, zeros


def dot_pairs(
    weights: Iterator[tuple[int, Value]], tokens: list[Pointer], rows: int
) -> list[Value]:
    """Σ q·p of a block of 32 columns, for each of an even number of tokens: an i32 for each row.

    `weights` gives a column, and four columns from there on of eight rows, as i8; in which order
    is all the same. `tokens` is where each one's int8 begin.
    """
    pairs = range(0, rows, 2)
    sums = [[zeros(i32 * 4) for _ in pairs] for _ in range(0, len(tokens), 2)]
    waiting: dict[int, Value] = {}
    for at, q in weights:
        waiting[at] = q.bitcast(i32 * rows)
        column = at // 8 * 8
        if not {column, column + 4} <= set(waiting):
            continue
        near, far = waiting.pop(column), waiting.pop(column + 4)
        zipped = [near.shuffle([r, rows + r, r + 1, rows + r + 1], far) for r in pairs]
        for two, totals in enumerate(sums):
            x = _two_tokens(tokens[2 * two], tokens[2 * two + 1], column)
            for i, q in enumerate(zipped):
                totals[i] = dot8_pairs(q.bitcast(i8 * 16), x, totals[i])
    return [_rows_of(totals, token) for totals in sums for token in range(2)]


def _two_tokens(first: Pointer, second: Pointer, column: int) -> Value:
    """Eight int8 of each."""
    halves = [x.at(column).cast(i64).load(align=8).broadcast(1) for x in (first, second)]
    return halves[0].shuffle([0, 1], halves[1]).bitcast(i8 * 16)


def _rows_of(totals: list[Value], token: int) -> Value:
    """One token's sums of all rows, out of [row, token] pairs."""
    while len(totals) > 1:
        lanes = list(range(2 * totals[0].type.lanes))
        totals = [a.shuffle(lanes, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    (whole,) = totals
    return whole.shuffle(list(range(token, whole.type.lanes, 2)))
