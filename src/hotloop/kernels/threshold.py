"""Which logits to keep: top-k, top-p and min-p as one threshold, without a sort.

A row of logits is cut into groups of 128, of which the maxima of each lane are known, so groups
with nothing above a bound are skipped. An exact threshold comes from bisection over the numbers
that a float32 can be: as many passes as they have bits, so first the candidates are made few.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.ir.sample import LARGEST, NEGLIGIBLE, ONE
from hotloop.kernels.approx import exp, log
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    any_lane,
    constant,
    f32,
    f64,
    i32,
    i64,
    if_,
    loop,
    max_lanes,
    maximum,
    minimum,
    select,
    sum_lanes,
    u32,
    u64,
    while_,
    zeros,
)

LANES = 8
GROUP = 128
HALVINGS = 8
"""How often top-p halves the range of logits before it collects those still in question."""


@dataclass
class Row:
    """A row of logits in groups, and what is known of them."""

    groups: int
    values: Pointer
    """f32[groups][128], finite, then padded with -infinity."""
    maxima: Pointer
    """f32[groups][8]: the greatest value in each lane of a group's vectors."""
    weights: Pointer
    """u32[groups][128] by the last `weigh`; stale where the group's total is 0."""
    totals: Pointer
    """u64[groups]: the sums of the weights."""
    few: Pointer
    """f32: values collected by `_collect`, padded to whole vectors with -infinity."""
    few_weights: Pointer
    """u32: their weights."""

    @staticmethod
    def groups_of(vocabulary: int) -> int:
        return -(-vocabulary // GROUP)

    @staticmethod
    def nbytes(vocabulary: int) -> int:
        """Bytes of all the arrays; a vector of padding may follow `few`."""
        return Row.groups_of(vocabulary) * (4 * (4 * GROUP + LANES) + 8) + 4 * LANES

    @staticmethod
    def at(scratch: Pointer, vocabulary: int) -> "Row":
        groups = Row.groups_of(vocabulary)
        values = scratch.cast(f32)
        maxima = values.at(groups * GROUP)
        weights = maxima.at(groups * LANES).cast(u32)
        few_weights = weights.at(groups * GROUP)
        totals = few_weights.at(groups * GROUP).cast(u64)
        few = totals.at(groups).cast(f32)
        return Row(groups, values, maxima, weights, totals, few, few_weights)


def find_maxima(row: Row) -> Value:
    """Fill `maxima`; gives the greatest value."""
    top = Var(constant(-LARGEST, f32 * LANES))
    for group in loop(row.groups):
        values = row.values.at(group * GROUP)
        greatest = Var(values.load(0, LANES))
        for i in loop(GROUP, LANES, LANES):
            greatest.set(maximum(values.load(i, LANES), greatest))
        row.maxima.store(greatest, group * LANES)
        top.set(maximum(greatest, top))
    return max_lanes(top)


def weigh(row: Row, limit: Value, top: Value, temperature: Value) -> Value:
    """Fill `weights` and `totals` for the values that reach `limit`; gives the sum as u64."""
    limit = _without_negligible(limit, top, temperature)
    sum_of_all = Var(constant(0, u64))
    for group in loop(row.groups):
        total = Var(zeros(u64 * (LANES // 2)))
        with if_(any_lane(row.maxima.load(group * LANES, LANES) >= limit)):
            for i in loop(GROUP, step=LANES):
                values = row.values.load(group * GROUP + i, LANES)
                weights = select(values >= limit, _weight(values, top, temperature), 0)
                row.weights.store(weights, group * GROUP + i)
                total += _pair_sums(weights)
        row.totals.store(sum_lanes(total), group)
        sum_of_all += sum_lanes(total)
    return sum_of_all.get()


def top_k(row: Row, k: Value) -> Value:
    """The k-th largest value, for a k (i64) of at least 1 and at most the vocabulary.

    The k-th largest maximum, if there are so many, is not above it, and few values reach that.
    """

    def count(values: Pointer, stop: Value | int) -> Callable[[Value], Value]:
        return lambda limit: _count(values, stop, limit) >= k

    low, high = constant(-LARGEST, f32), constant(float("inf"), f32)
    bound = _bisect(count(row.maxima, row.groups * LANES), low, high)
    collected = _collect(row, bound, high)
    return _bisect(count(row.few, collected), bound, high)


def top_p(row: Row, p: Value, limit: Value, top: Value) -> Value:
    """The largest threshold whose values hold the share p of those that reach `limit`."""
    one = constant(1, f32)
    total = weigh(row, limit, top, one).to(f64)
    share = maximum(p, 0.0).to(f64) * total
    whole = share.to(i64)
    needed = maximum(whole + (whole.to(f64) < share).to(i64), 1).to(u64)

    low, high = Var(_without_negligible(limit, top, one)), Var(constant(float("inf"), f32))
    right, above = Var(top), Var(constant(0, u64))
    for _ in loop(HALVINGS):
        middle = low + (right - low) * 0.5
        mass = _mass_of_row(row, middle)
        enough = mass >= needed
        low.set(select(enough, middle, low))
        right.set(select(enough, right.get(), middle))
        high.set(select(enough, high.get(), middle))
        above.set(select(enough, above.get(), mass))

    collected = _collect(row, low, high)
    for i in loop(collected, step=LANES):
        row.few_weights.store(_weight(row.few.load(i, LANES), top, one), i)
    return _bisect(lambda t: above + _mass_of_few(row, collected, t) >= needed, low, high)


def min_p(p: Value, top: Value) -> Value:
    """The threshold for a positive p."""
    return top + log(minimum(p, 1.0))


def _without_negligible(limit: Value, top: Value, temperature: Value) -> Value:
    """A threshold that leaves out only what weighs 0."""
    return maximum(limit, top + temperature * NEGLIGIBLE)


def _weight(values: Value, top: Value, temperature: Value) -> Value:
    """2^30 · exp((value - top) / temperature) as u32, the fraction cut off."""
    x = maximum((values - top) / temperature, NEGLIGIBLE)
    return (exp(x) * ONE).to(i32).bitcast(u32 * LANES)


def _pair_sums(weights: Value) -> Value:
    """u32 lanes to half as many u64 lanes."""
    pairs = weights.bitcast(u64 * (LANES // 2))
    return (pairs & 0xFFFFFFFF) + (pairs >> 32)


def _count(values: Pointer, stop: Value | int, limit: Value) -> Value:
    """How many of `values` reach the limit, as i64."""
    count = Var(zeros(i32 * LANES))
    for i in loop(stop, step=LANES):
        count += (values.load(i, LANES) >= limit).to(i32)
    return sum_lanes(count).to(i64)


def _mass_of_few(row: Row, collected: Value, limit: Value) -> Value:
    total = Var(zeros(u64 * (LANES // 2)))
    for i in loop(collected, step=LANES):
        reached = row.few.load(i, LANES) >= limit
        total += _pair_sums(select(reached, row.few_weights.load(i, LANES), 0))
    return sum_lanes(total)


def _mass_of_row(row: Row, limit: Value) -> Value:
    """The weights of the values that reach a limit not below that of the last `weigh`."""
    total = Var(zeros(u64 * (LANES // 2)))
    for group in loop(row.groups):
        with if_(any_lane(row.maxima.load(group * LANES, LANES) >= limit)):
            for i in loop(GROUP, step=LANES):
                at = group * GROUP + i
                reached = row.values.load(at, LANES) >= limit
                total += _pair_sums(select(reached, row.weights.load(at, LANES), 0))
    return sum_lanes(total)


def _collect(row: Row, low: Value, high: Value) -> Value:
    """Copy the values in [low, high) to `few`; gives their number."""
    low, high = low.get(), high.get()
    count = Var(constant(0, i64))
    for group in loop(row.groups):
        with if_(any_lane(row.maxima.load(group * LANES, LANES) >= low)):
            for i in loop(GROUP):
                value = row.values.load(group * GROUP + i)
                row.few.store(value, count)
                count += ((value >= low) & (value < high)).to(i64)
    row.few.store(constant(float("-inf"), f32 * LANES), count)
    return count.get()


def _bisect(reaches: Callable[[Value], Value], low: Value, high: Value) -> Value:
    """The largest float32 that `reaches` holds for, where it does for `low` and not for `high`."""
    below, above = Var(_order(low)), Var(_order(high))
    for _ in while_(lambda: above - below > 1):
        middle = (below + above) >> 1
        enough = reaches(_number(middle))
        below.set(select(enough, middle, below))
        above.set(select(enough, above.get(), middle))
    return _number(below.get())


def _order(number: Value) -> Value:
    """An i64 in the order of the float32: its bits, with negative ones counting downwards."""
    return _flip(number.bitcast(i32)).to(i64)


def _number(order: Value) -> Value:
    return _flip(order.to(i32)).bitcast(f32)


def _flip(bits: Value) -> Value:
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
