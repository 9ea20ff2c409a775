"""sample: from each row of logits to a token, exactly as `hotloop.ir.sample` says."""

from dataclasses import dataclass

from hotloop.ir.sample import LARGEST, UNIFORM_BITS
from hotloop.ir.types import CONTROL
from hotloop.kernels.cache import position_of
from hotloop.kernels.control import read
from hotloop.kernels.philox import philox
from hotloop.kernels.threshold import GROUP, Row, find_maxima, min_p, top_k, top_p, weigh
from hotloop.kernels.tile import OpSpec, Tile, kernel, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    any_lane,
    constant,
    f32,
    i32,
    i64,
    if_,
    if_else,
    loop,
    max_lanes,
    maximum,
    minimum,
    select,
    strip,
    u32,
    u64,
    while_,
)

SCAN = 32
"""Logits that argmax looks at together."""


def _scratch(spec: OpSpec) -> int:
    return Row.nbytes(spec.operands[0].shape[1])


@dataclass(frozen=True)
class _Sequence:
    """What sampling reads of one sequence, for one of its tokens."""

    logits: Pointer
    """f32[vocabulary]."""
    ring: Pointer
    """i32[capacity]."""
    pos: Value
    control: Pointer
    bias: Pointer | None
    """f32[vocabulary], where the op has one."""
    vocabulary: int
    capacity: int


@kernel("sample", scratch=_scratch)
def sample(tile: Tile) -> None:
    assert tile.result is not None
    for row in loop(minimum(tile.hi, tile.count), tile.lo):
        token = _sample(_sequence(tile, row), tile.scratch)
        tile.result.cast(i32).store(token.to(i32), row)


def _sequence(tile: Tile, row: Value) -> _Sequence:
    logits_type, ring_type, pos_type = tile.spec.operands[:3]
    vocabulary, capacity = logits_type.shape[1], ring_type.shape[1]
    logits, ring, pos, control, *bias = tile.operands
    number = row if ring_type.shape[0] > 1 else constant(0, i64)
    return _Sequence(
        logits.cast(f32).at(row * row_stride(vocabulary)),
        ring.cast(i32).at(number * capacity),
        position_of(pos, pos_type, row),
        control.at(number * CONTROL.itemsize),
        bias[0].cast(f32).at(number * vocabulary) if bias else None,
        vocabulary,
        capacity,
    )


def _sample(sequence: _Sequence, scratch: Pointer) -> Value:
    """Where no logit changes and the largest is taken, nothing is copied."""
    logits, vocabulary = sequence.logits, sequence.vocabulary
    greedy = ~(read(sequence.control, "temperature") > 0)
    penalises, charges = _penalises(sequence.control), _charges(sequence.control)
    changes = penalises | charges
    if sequence.bias is not None:
        changes = changes | read(sequence.control, "biased").differs(0)
    token = Var(constant(0, i64))
    with if_else(greedy & ~changes) as otherwise:
        token.set(_argmax(logits, vocabulary))
        otherwise()
        row = Row.at(scratch, vocabulary)
        _copy(logits, row, vocabulary)
        with if_(penalises):
            _penalise(sequence, row.values)
        with if_(charges):
            _charge_output(sequence, row)
        if sequence.bias is not None:
            with if_(read(sequence.control, "biased").differs(0)):
                _add_bias(sequence.bias, row.values, vocabulary)
        with if_else(greedy) as otherwise:
            token.set(_argmax(row.values, vocabulary))
            otherwise()
            token.set(_draw(sequence, row))
    return token.get()


def _argmax(values: Pointer, count: int) -> Value:
    """The index of the largest, the lowest among equals; 0 where nothing is above -infinity."""
    whole = count // SCAN * SCAN
    lanes = Var(constant(float("-inf"), f32 * SCAN))
    for i in loop(whole, step=SCAN):
        lanes.set(maximum(values.load(i, SCAN), lanes))  # in this order NaN is passed over
    top = Var(max_lanes(lanes))
    for i in loop(count, whole):
        top.set(maximum(values.load(i), top))
    at = Var(constant(0, i64))
    with if_(top > float("-inf")):
        if whole:
            last = whole - SCAN  # the load happens even where `at` has got to the end
            for _ in while_(lambda: (at < whole) & ~_any_equal(values, minimum(at, last), top)):
                at.set(at + SCAN)
        for _ in while_(lambda: ~values.load(at).equals(top)):
            at.set(at + 1)
    return at.get()


def _any_equal(values: Pointer, at: Value, number: Value) -> Value:
    return any_lane(values.load(at, SCAN).equals(number))


def _copy(logits: Pointer, row: Row, vocabulary: int) -> None:
    for i, lanes in strip(vocabulary):
        row.values.store(_finite(logits.load(i, lanes)), i)
    for i in loop(row.groups * GROUP, vocabulary):
        row.values.store(float("-inf"), i)


def _finite(values: Value) -> Value:
    """Infinities and NaN to the ends of the range: NaN, like -infinity, to the smallest."""
    return minimum(maximum(values, -LARGEST), LARGEST)


def _penalises(control: Pointer) -> Value:
    penalty = read(control, "repeat_penalty")
    return ((penalty < 1) | (penalty > 1)) & (read(control, "repeat_last_n") > 0)


def _penalise(sequence: _Sequence, values: Pointer) -> None:
    """Each from the logit as it was, so that a token that occurs twice is penalised once."""
    penalty = read(sequence.control, "repeat_penalty")
    stop = minimum(sequence.pos + 1, sequence.capacity)
    start = maximum(stop - read(sequence.control, "repeat_last_n").to(i64), 0)
    for i in loop(stop, start):
        token = sequence.ring.load(i).to(i64)
        with if_((token >= 0) & (token < sequence.vocabulary)):
            logit = sequence.logits.load(token)
            penalised = select(logit > 0, logit / penalty, logit * penalty)
            values.store(_finite(penalised), token)


def _charges(control: Pointer) -> Value:
    presence, frequency = read(control, "presence_penalty"), read(control, "frequency_penalty")
    return presence.differs(0) | frequency.differs(0)


def _charge_output(sequence: _Sequence, row: Row) -> None:
    """Frequency for each token of the output, then presence for each distinct one."""
    control, values = sequence.control, row.values
    presence, frequency = read(control, "presence_penalty"), read(control, "frequency_penalty")
    seen = row.weights  # not in use yet
    stop = minimum(sequence.pos + 1, sequence.capacity)
    start = maximum(read(control, "prompt").to(i64), 0)
    for i in loop(stop, start):
        token = sequence.ring.load(i).to(i64)
        with if_((token >= 0) & (token < sequence.vocabulary)):
            values.store(values.load(token) - frequency, token)
            seen.store(constant(0, u32), token)
    for i in loop(stop, start):
        token = sequence.ring.load(i).to(i64)
        with if_((token >= 0) & (token < sequence.vocabulary)), if_(seen.load(token).equals(0)):
            values.store(_finite(values.load(token) - presence), token)
            seen.store(constant(1, u32), token)


def _add_bias(bias: Pointer, values: Pointer, vocabulary: int) -> None:
    for i, lanes in strip(vocabulary):
        values.store(_finite(values.load(i, lanes) + bias.load(i, lanes)), i)


def _draw(sequence: _Sequence, row: Row) -> Value:
    """Keep what reaches the threshold, and draw one by its weight."""
    control = sequence.control
    top = find_maxima(row)
    limit = Var(constant(-LARGEST, f32))
    k, p, least = read(control, "top_k"), read(control, "top_p"), read(control, "min_p")
    with if_((k > 0) & (k < sequence.vocabulary)):
        limit.set(top_k(row, k.to(i64)))
    with if_(p < 1):
        limit.set(top_p(row, p, limit, top))
    with if_(least > 0):
        limit.set(maximum(min_p(least, top), limit))
    total = weigh(row, limit, top, read(control, "temperature"))
    word = philox(read(control, "seed"), sequence.pos.to(i32))
    return _find(row, _share(total, word >> (64 - UNIFORM_BITS)))


def _share(total: Value, uniform: Value) -> Value:
    """total · uniform / 2^24, cut to an integer, without a product of more than 64 bits."""
    low = total & ((1 << UNIFORM_BITS) - 1)
    return (total >> UNIFORM_BITS) * uniform + ((low * uniform) >> UNIFORM_BITS)


def _find(row: Row, share: Value) -> Value:
    """The first index whose running sum of weights exceeds `share`, which is below their total."""
    running = Var(constant(0, u64))
    group = Var(constant(0, i64))
    for _ in while_(lambda: running + row.totals.load(group) <= share):
        running.set(running + row.totals.load(group))
        group.set(group + 1)
    at = Var(group * GROUP)
    for _ in while_(lambda: running + row.weights.load(at).to(u64) <= share):
        running.set(running + row.weights.load(at).to(u64))
        at.set(at + 1)
    return at.get()
