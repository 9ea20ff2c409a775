"""route, route_weights: which experts a token goes to, and how much each counts."""

import math

from hotloop.ir.ops import GROUP
from hotloop.ir.ops.experts import NORM_FLOOR
from hotloop.kernels.approx import exp
from hotloop.kernels.tile import OpSpec, Tile, kernel, round_up, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    constant,
    f32,
    i32,
    i64,
    if_,
    loop,
    max_lanes,
    maximum,
    minimum,
    select,
    strip,
    sum_lanes,
    vector,
    zeros,
)

INFINITY, NAN = math.inf, math.nan
"""In the kernels' scores, NaN stands for what cannot be chosen (any more)."""


def _padded(experts: int) -> int:
    return round_up(experts, GROUP)


def _route_scratch(spec: OpSpec) -> int:
    """The scores of all experts, then those of all groups."""
    groups = int(spec.attr("groups"))
    return (_padded(spec.operands[0].shape[1]) + _padded(groups)) * 4


@kernel("route", scratch=_route_scratch)
def route(tile: Tile) -> None:
    spec = tile.spec
    experts, top = spec.operands[0].shape[1], int(spec.attr("top"))
    logits, *bias = (operand.cast(f32) for operand in tile.operands)
    scores = tile.scratch.cast(f32)
    assert tile.result is not None
    ids = tile.result.cast(i32)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        row = logits.at(token * row_stride(experts))
        for i, lanes in strip(experts):
            score = row.load(i, lanes)
            if spec.attr("scoring") == "sigmoid":
                score = _sigmoid(score)
            for each in bias:
                score = score + each.load(i, lanes)
            scores.store(_at_least_minus_infinity(score), i)
        _store_nan(scores, experts)
        if int(spec.attr("groups")) > 1:
            _bar_groups(spec, scores)
        for slot in loop(top):
            best = _take_best(scores, experts)
            ids.store(best, token * row_stride(top) + slot)


def _sigmoid(x: Value) -> Value:
    return 1.0 / (exp(-x) + 1.0)


def _at_least_minus_infinity(score: Value) -> Value:
    """The score itself, but -infinity for NaN: an expert all the same."""
    return select(score >= -INFINITY, score, -INFINITY)


def _store_nan(scores: Pointer, count: int) -> None:
    """Fill the scores from number `count` to the end of the last vector."""
    for i in range(count, _padded(count)):
        scores.store(NAN, i)


def _take_best(scores: Pointer, count: int) -> Value:
    """The number of the greatest score, the lowest among equals; it becomes NaN."""
    best, at = Var(constant(NAN, f32 * GROUP)), Var(zeros(i32 * GROUP))
    lanes = vector(range(GROUP), i32)
    for i in loop(_padded(count), step=GROUP):
        score = scores.load(i, GROUP)
        better = score.equals(score) & ~(score <= best)  # anything is better than NaN
        best.set(select(better, score, best.get()))
        at.set(select(better, lanes + i.to(i32), at.get()))
    value, number = best.get(), at.get()
    while value.type.lanes > 1:
        a, b = value.low, value.high
        earlier = a.equals(b) & (number.high < number.low)
        second = b.equals(b) & (~(a >= b) | earlier)
        number = select(second, number.high, number.low)
        value = select(second, b, a)
    found = number.lane(0)
    scores.store(NAN, found.to(i64))
    return found


def _bar_groups(spec: OpSpec, scores: Pointer) -> None:
    """Give NaN to the experts of all groups but the best ones."""
    experts, groups = spec.operands[0].shape[1], int(spec.attr("groups"))
    size, of_groups = experts // groups, scores.at(_padded(experts))
    for group in loop(groups):
        first, second = (Var(constant(-INFINITY, f32)) for _ in range(2))
        for i in loop(size):
            score = scores.load(group * size + i)
            second.set(maximum(second, minimum(first, score)))
            first.set(maximum(first, score))
        total = first.get() if spec.attr("group_best") == 1 else first + second
        of_groups.store(_at_least_minus_infinity(total), group)
    _store_nan(of_groups, groups)
    for _ in loop(int(spec.attr("top_groups"))):
        _take_best(of_groups, groups)
    for group in loop(groups):
        score = of_groups.load(group)
        with if_(score.equals(score)):  # not taken
            for i in loop(size):
                scores.store(NAN, group * size + i)


def _weights_scratch(spec: OpSpec) -> int:
    """The logits of all experts, padded with -infinity."""
    return _padded(spec.operands[0].shape[1]) * 4


@kernel("route_weights", scratch=_weights_scratch)
def route_weights(tile: Tile) -> None:
    spec = tile.spec
    experts, slots = (type.shape[1] for type in spec.operands)
    logits, ids = tile.operands[0].cast(f32), tile.operands[1].cast(i32)
    assert tile.result is not None
    normalise, scale = bool(spec.attr("normalise")), float(spec.attr("scale"))
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        row, chosen = logits.at(token * row_stride(experts)), ids.at(token * row_stride(slots))
        out = tile.result.cast(f32).at(token * row_stride(slots))
        total = Var(constant(0, f32))
        if spec.attr("scoring") == "sigmoid":
            for slot in loop(slots):
                out.store(_sigmoid(row.load(chosen.load(slot))), slot)
                total += out.load(slot)
            total.set(total + NORM_FLOOR)
        else:
            largest = Var(constant(-INFINITY, f32))
            if normalise:
                for slot in loop(slots):
                    largest.set(maximum(largest, row.load(chosen.load(slot))))
            else:
                total.set(_softmax_total(row, experts, tile.scratch.cast(f32), largest))
            for slot in loop(slots):
                out.store(exp(row.load(chosen.load(slot)) - largest), slot)
                if normalise:
                    total += out.load(slot)
        for slot in loop(slots):
            weight = out.load(slot)
            if normalise or spec.attr("scoring") == "softmax":
                weight = weight / total
            out.store(weight * scale, slot)


def _softmax_total(row: Pointer, experts: int, scratch: Pointer, largest: Var) -> Value:
    """Σ exp(logit - largest) over all experts; sets `largest`."""
    for i, lanes in strip(experts):
        scratch.store(row.load(i, lanes), i)
    for pad in range(experts, _padded(experts)):
        scratch.store(-INFINITY, pad)
    highest = Var(constant(-INFINITY, f32 * GROUP))
    for i in loop(_padded(experts), step=GROUP):
        highest.set(maximum(highest, scratch.load(i, GROUP)))
    largest.set(max_lanes(highest))
    total = Var(zeros(f32 * GROUP))
    for i in loop(_padded(experts), step=GROUP):
        total += exp(scratch.load(i, GROUP) - largest)
    return sum_lanes(total)
