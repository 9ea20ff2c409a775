"""The kernel language against NumPy, on this CPU's instructions and on plain ones."""

import ctypes
import math
from collections.abc import Callable

import numpy as np
import pytest
from jit import TARGETS, Jit, aligned, assembly

from hotloop.lang import (
    Module,
    Pointer,
    Target,
    Type,
    Value,
    Var,
    absolute,
    add_pairs,
    any_lane,
    bf16_to_f32,
    bool_,
    call,
    call_address,
    compare_exchange,
    constant,
    dot2,
    dot2_wide,
    dot4,
    dot4_signed,
    f16,
    f32,
    f64,
    fetch_add,
    floor,
    fma,
    function,
    i8,
    i16,
    i32,
    i64,
    if_,
    if_else,
    load_acquire,
    loop,
    max_lanes,
    maximum,
    minimum,
    null,
    prefetch,
    ptr,
    ret,
    round_even,
    select,
    sqrt,
    store_release,
    strip,
    sum_lanes,
    u8,
    u16,
    u32,
    u64,
    vector,
    while_,
)
from hotloop.lang.target import AARCH64

both_targets = pytest.mark.parametrize("target", TARGETS, ids=["host", "portable"])
DTYPES = {
    i8: np.int8,
    i16: np.int16,
    i32: np.int32,
    i64: np.int64,
    u8: np.uint8,
    u16: np.uint16,
    u32: np.uint32,
    u64: np.uint64,
    f16: np.float16,
    f32: np.float32,
    f64: np.float64,
}
INTEGERS = [type for type in DTYPES if not type.is_float]


def compiled(body: Callable[..., None], arrays: int, target: Target) -> Callable[..., None]:
    """The function that `body`, given pointers to `arrays` arrays, traces."""
    module = Module("test", target)
    params = [(f"array{i}", ptr) for i in range(arrays)]
    with function(module, "f", params, exported=True) as pointers:
        body(*pointers)
    jit = Jit(module)
    code = jit.function("f", *[ctypes.c_void_p] * arrays)

    def run(*buffers: np.ndarray) -> None:
        assert jit
        code(*[buffer.ctypes.data for buffer in buffers])

    return run


def mapped(
    operation: Callable[..., Value], result: Type, inputs: list[np.ndarray], target: Target
) -> np.ndarray:
    """`operation` on each element of equally long arrays: eight lanes at a time, then singly."""
    element = {np.dtype(dtype): type for type, dtype in DTYPES.items()}
    count = len(inputs[0])

    def body(out: Pointer, *arrays: Pointer) -> None:
        typed = [a.cast(element[x.dtype]) for a, x in zip(arrays, inputs, strict=True)]
        for i, lanes in strip(count):
            out.cast(result).store(operation(*[a.load(i, lanes) for a in typed]), i)

    out = aligned(count * result.size).view(DTYPES[result])
    compiled(body, 1 + len(inputs), target)(out, *inputs)
    return out


def some(type: Type, count: int = 61, seed: int = 0) -> np.ndarray:
    """Numbers of the type, its extremes among them; a count that leaves singles over."""
    random = np.random.default_rng(seed)
    dtype = DTYPES[type]
    if type.is_float:
        return random.normal(0, 100, count).astype(dtype)
    info = np.iinfo(dtype)
    numbers = random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    numbers[:3] = info.min, info.max, 1
    return numbers


# operators ---------------------------------------------------------------------------------------

ARITHMETIC: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negate": lambda a, b: -a,
    "a constant on either side": lambda a, b: 3 - (2 + a * 5) * 1,
}
BITS: dict[str, Callable] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "invert": lambda a, b: ~a,
    "shift left": lambda a, b: a << 3,
    "shift right": lambda a, b: a >> 3,
}


@pytest.mark.parametrize("type", INTEGERS, ids=str)
def test_integer_operators_wrap_as_numpys_do(type: Type) -> None:
    a, b = some(type, seed=1), some(type, seed=2)
    for name, operation in (ARITHMETIC | BITS).items():
        with np.errstate(over="ignore"):
            expected = operation(a, b)
        np.testing.assert_array_equal(mapped(operation, type, [a, b], TARGETS[0]), expected, name)


@pytest.mark.parametrize("type", [f32, f64], ids=str)
def test_float_operators(type: Type) -> None:
    a, b = some(type, seed=1), some(type, seed=2)
    for name, operation in (ARITHMETIC | {"divide": lambda a, b: a / b}).items():
        result = mapped(operation, type, [a, b], TARGETS[0])
        np.testing.assert_array_equal(result, operation(a, b), name)


def test_integer_division_rounds_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    quotient = mapped(lambda a, b: a // b, i32, [a, b], TARGETS[0])
    remainder = mapped(lambda a, b: a % b, i32, [a, b], TARGETS[0])
    assert quotient.tolist() == [3, -3, -3, 3]
    assert remainder.tolist() == [1, -1, 1, -1]
    large = np.array([2**32 - 2], np.uint32)
    assert mapped(lambda a: a // 2, u32, [large], TARGETS[0])[0] == 2**31 - 1


@pytest.mark.parametrize("type", [i8, u8, i32, u32, f32], ids=str)
def test_comparisons_know_the_sign(type: Type) -> None:
    a, b = some(type, seed=1), some(type, seed=2)
    b[::5] = a[::5]
    for compare, expected in [
        (lambda a, b: a < b, a < b),
        (lambda a, b: a <= b, a <= b),
        (lambda a, b: a > b, a > b),
        (lambda a, b: a >= b, a >= b),
        (lambda a, b: a.equals(b), a == b),
        (lambda a, b: a.differs(b), a != b),
    ]:
        result = mapped(
            lambda a, b, compare=compare: compare(a, b).to(i32), i32, [a, b], TARGETS[0]
        )
        np.testing.assert_array_equal(result, expected)


def test_nothing_contracts_or_reassociates() -> None:
    a = np.full(9, 1 + 2.0**-12, np.float32)
    product = mapped(lambda a: a * a - (1 + 2.0**-11), f32, [a], TARGETS[0])
    assert (product == 0).all()
    fused = mapped(lambda a: fma(a, a, -(1 + 2.0**-11)), f32, [a], TARGETS[0])
    assert (fused == 2.0**-24).all()
    big = np.full(9, 2.0**24, np.float32)
    assert (mapped(lambda a: ((a + 1) + 1) - a, f32, [big], TARGETS[0]) == 0).all()


# conversions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_convert_as_numpys_do(source: Type) -> None:
    a = some(source)
    for target in INTEGERS:
        result = mapped(lambda a, target=target: a.to(target), target, [a], TARGETS[0])
        np.testing.assert_array_equal(result, a.astype(DTYPES[target]), str(target))
    result = mapped(lambda a: a.to(f32), f32, [a], TARGETS[0])
    np.testing.assert_array_equal(result, a.astype(np.float32))


def test_floats_to_integers_cut() -> None:
    a = np.array([1.9, -1.9, 0.5, 100.2], np.float32)
    assert mapped(lambda a: a.to(i32), i32, [a], TARGETS[0]).tolist() == [1, -1, 0, 100]
    assert mapped(lambda a: a.to(f64), f64, [a], TARGETS[0]).tolist() == a.tolist()


@both_targets
def test_every_half_becomes_its_float(target: Target) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    floats = mapped(lambda a: a.to(f32), f32, [halves], target)
    numbers = ~np.isnan(halves)
    expected = halves.astype(np.float32)
    np.testing.assert_array_equal(
        floats[numbers].view(np.uint32), expected[numbers].view(np.uint32)
    )
    assert np.isnan(floats[~numbers]).all()


@both_targets
def test_floats_round_to_the_nearest_even_half(target: Target) -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2
    edges = np.array([65504, 65519.996, 65520, 1e30, np.inf, 1e-8, 2.0**-25, 1e-45, 0], np.float32)
    numbers = [halves, between, np.nextafter(between, 0), np.nextafter(between, 1e9), edges]
    floats = np.concatenate(numbers).astype(np.float32)
    floats = np.concatenate([floats, -floats])
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16)
    result = mapped(lambda a: a.to(f16), f16, [floats], target)
    np.testing.assert_array_equal(result.view(np.uint16), expected.view(np.uint16))
    nan = np.array([np.nan, -np.nan], np.float32)
    assert np.isnan(mapped(lambda a: a.to(f16), f16, [nan], target)).all()


def test_halves_need_no_library_on_aarch64() -> None:
    module = Module("test", AARCH64)
    with function(module, "f", [("x", ptr), ("y", ptr)], exported=True) as (x, y):
        assert isinstance(x, Pointer)
        assert isinstance(y, Pointer)
        y.cast(f16).store(x.cast(f16).load(lanes=8).to(f32).to(f16))
    assert "\tbl\t" not in assembly(module)


def test_bfloat_is_the_upper_half_of_a_float() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    floats = mapped(bf16_to_f32, f32, [bits], TARGETS[0])
    np.testing.assert_array_equal(floats.view(np.uint32), bits.astype(np.uint32) << 16)


def test_bitcast_keeps_the_bits() -> None:
    a = some(f32)
    bits = mapped(lambda a: a.bitcast(u32 * a.type.lanes), u32, [a], TARGETS[0])
    np.testing.assert_array_equal(bits, a.view(np.uint32))


# lanes -------------------------------------------------------------------------------------------


def test_lanes_move_where_they_are_told() -> None:
    def body(out: Pointer, x: Pointer) -> None:
        out, a = out.cast(i32), x.cast(i32).load(lanes=8)
        out.store(a.high, 0)
        out.store(a.low, 4)
        out.store(a.shuffle([7, 0, 8, 15], a + 100), 8)
        out.store(a.lane(3).broadcast(4), 12)
        out.store(vector([5, -6, 7, 8], i32), 16)
        out.store(select(a.low > 1, a.low, -1), 20)
        out[24] = any_lane(a > 6).to(i32) + any_lane(a > 7).to(i32)
        out[25] = sum_lanes(a)
        out[26] = max_lanes(0 - a)

    out = np.zeros(27, np.int32)
    compiled(body, 2, TARGETS[0])(out, np.arange(8, dtype=np.int32))
    assert out[:8].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert out[8:16].tolist() == [7, 0, 100, 107, 3, 3, 3, 3]
    assert out[16:24].tolist() == [5, -6, 7, 8, -1, -1, 2, 3]
    assert out[24:].tolist() == [1, 28, 0]


@both_targets
def test_lanes_are_summed_halves_first(target: Target) -> None:
    x = some(f32, 8)

    def body(out: Pointer, x: Pointer) -> None:
        out.cast(f32).store(sum_lanes(x.cast(f32).load(lanes=8)))

    out = np.zeros(1, np.float32)
    compiled(body, 2, target)(out, x)
    halves = x[:4] + x[4:]
    quarters = halves[:2] + halves[2:]
    assert out[0] == quarters[0] + quarters[1]


@both_targets
def test_rounding_and_extremes(target: Target) -> None:
    a = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.2, -3.7, 1e9, 0.0], np.float32)
    for traced, meant in [(round_even, np.rint), (floor, np.floor), (absolute, np.abs)]:
        np.testing.assert_array_equal(mapped(traced, f32, [a], target), meant(a))
    np.testing.assert_array_equal(mapped(sqrt, f32, [np.abs(a)], target), np.sqrt(np.abs(a)))
    b = a[::-1].copy()
    np.testing.assert_array_equal(mapped(maximum, f32, [a, b], target), np.maximum(a, b))
    np.testing.assert_array_equal(mapped(minimum, f32, [a, b], target), np.minimum(a, b))


@both_targets
def test_the_second_wins_against_nan(target: Target) -> None:
    a, b = np.array([np.nan, 1], np.float32), np.array([2, np.nan], np.float32)
    for operation in (maximum, minimum):
        assert np.array_equal(mapped(operation, f32, [a, b], target), b, equal_nan=True)


# dot products ------------------------------------------------------------------------------------


@both_targets
@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_dot_products_are_exact(target: Target, lanes: int) -> None:
    random = np.random.default_rng(lanes)
    unsigned = random.integers(0, 129, lanes).astype(np.uint8)
    signed = random.integers(-128, 128, lanes).astype(np.int8)
    other = random.integers(-127, 128, lanes).astype(np.int8)
    unsigned[:4], signed[:4], other[:4] = 128, -128, -127
    other[4:8], signed[8:12] = 0, 0

    def body(out2: Pointer, out4: Pointer, out_signed: Pointer, *x: Pointer) -> None:
        a = x[0].cast(u8).load(lanes=lanes)
        s, b = (p.cast(i8).load(lanes=lanes) for p in x[1:])
        out2.cast(i16).store(dot2(a, b))
        out4.cast(i32).store(dot4(a, b))
        out_signed.cast(i32).store(dot4_signed(s, b))

    pairs = np.zeros(lanes // 2, np.int16)
    fours, signed_fours = np.zeros(lanes // 4, np.int32), np.zeros(lanes // 4, np.int32)
    compiled(body, 6, target)(pairs, fours, signed_fours, unsigned, signed, other)
    products = unsigned.astype(np.int32) * other
    np.testing.assert_array_equal(pairs, products.reshape(-1, 2).sum(axis=1))
    np.testing.assert_array_equal(fours, products.reshape(-1, 4).sum(axis=1))
    products = signed.astype(np.int32) * other
    np.testing.assert_array_equal(signed_fours, products.reshape(-1, 4).sum(axis=1))


@both_targets
@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_wide_dot_products_are_exact(target: Target, lanes: int) -> None:
    random = np.random.default_rng(lanes)
    a, b = random.integers(-32768, 32768, (2, lanes)).astype(np.int16)
    a[:4], b[:4] = [32767, 32767, -32768, -32768], [-32768, -32768, 32767, 32767]
    total = random.integers(-1000, 1000, lanes // 2).astype(np.int32)

    def body(out: Pointer, *x: Pointer) -> None:
        left, right = (p.cast(i16).load(lanes=lanes) for p in x[:2])
        out.cast(i32).store(dot2_wide(left, right, x[2].cast(i32).load(lanes=lanes // 2)))

    out = np.zeros(lanes // 2, np.int32)
    compiled(body, 4, target)(out, a, b, total)
    sums = (a.astype(np.int64) * b).reshape(-1, 2).sum(axis=1) + total
    np.testing.assert_array_equal(out, sums.astype(np.int32))


@both_targets
@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_pairs_widen_before_they_are_added(target: Target, lanes: int) -> None:
    x = np.resize(np.array([32767, 32767, -32768, -32768, 5, -7], np.int16), lanes)

    def body(out: Pointer, x: Pointer) -> None:
        out.cast(i32).store(add_pairs(x.cast(i16).load(lanes=lanes)))

    out = np.zeros(lanes // 2, np.int32)
    compiled(body, 2, target)(out, x)
    np.testing.assert_array_equal(out, x.reshape(-1, 2).sum(axis=1, dtype=np.int32))


# control flow, variables, calls ------------------------------------------------------------------


def test_loops_and_branches() -> None:
    """Collatz: the steps from each number down to 1."""

    def body(out: Pointer, x: Pointer) -> None:
        for i in loop(6):
            n, steps = Var(x.cast(i64).load(i)), Var(constant(0, i64))
            for _ in while_(lambda n=n: n > 1):
                with if_else((n & 1).equals(0)) as otherwise:
                    n.set(n >> 1)
                    otherwise()
                    n.set(n * 3 + 1)
                steps += 1
            with if_(n.equals(1)):
                out.cast(i64)[i] = steps

    out = np.full(6, -1)
    compiled(body, 2, TARGETS[0])(out, np.array([1, 2, 3, 6, 27, -5]))
    assert out.tolist() == [0, 1, 7, 8, 111, -1]


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 0, 1), (3, 10, 4), (5, 2, 1), (-3, 3, 2)])
@pytest.mark.parametrize("unroll", [1, 4])
def test_a_loop_runs_as_pythons_range(start: int, stop: int, step: int, unroll: int) -> None:
    def body(out: Pointer) -> None:
        out = out.cast(i64)
        for i in loop(stop, start, step, unroll=unroll):
            out[0] = out[0] * 10 + i
            out[1] = out[1] + 1

    out = np.zeros(2, np.int64)
    compiled(body, 1, TARGETS[0])(out)
    numbers = list(range(start, stop, step))
    assert out.tolist() == [
        sum(n * 10**k for k, n in enumerate(reversed(numbers))),
        len(numbers),
    ]


@pytest.mark.parametrize("count", [0, 7, 8, 19])
def test_a_strip_touches_nothing_beyond_its_end(count: int) -> None:
    def body(out: Pointer) -> None:
        for i, lanes in strip(count):
            out.cast(f32).store(constant(lanes, f32 * lanes), i)

    out = np.full(24, -1, np.float32)
    compiled(body, 1, TARGETS[0])(out)
    assert out.tolist() == [8] * (count // 8 * 8) + [0] * (count % 8) + [-1] * (24 - count)


def test_functions_call_each_other_by_name_and_by_address() -> None:
    module = Module("test", TARGETS[0])
    with function(module, "half", [("n", i64)], i64) as (n,):
        with if_(n < 0):
            ret(0)
        ret(n // 2)
    with function(module, "f", [("code", ptr), ("n", i64)], i64, exported=True) as (code, n):
        assert isinstance(code, Pointer)
        inner = call(module.functions["half"], [n])
        ret(call_address(code, [inner], i64) + call(module.functions["half"], [-5]))
    jit = Jit(module)
    f = jit.function("f", ctypes.c_void_p, ctypes.c_int64, result=ctypes.c_int64)
    triple = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda n: 3 * n)
    assert f(ctypes.cast(triple, ctypes.c_void_p), 20) == 30


def test_pointers_in_memory() -> None:
    def body(table: Pointer, out: Pointer) -> None:
        second = table.load_pointer(1, f32)
        out.cast(f32)[0] = second[2]
        out.cast(f32)[1] = table.load_pointer(2).is_null().to(f32) + null().is_null().to(f32)
        prefetch(second.at(1 << 40), locality=0)

    numbers = np.array([1, 2, 3.5], np.float32)
    table, out = np.array([0, numbers.ctypes.data, 0], np.uint64), np.zeros(2, np.float32)
    compiled(body, 2, TARGETS[0])(table, out)
    assert out.tolist() == [3.5, 2]


@pytest.mark.parametrize("type", [i32, i64], ids=str)
def test_atomics(type: Type) -> None:
    def body(cell: Pointer, out: Pointer) -> None:
        cell, out = cell.cast(type), out.cast(type)
        out[0] = fetch_add(cell, 5)
        out[1] = load_acquire(cell)
        found, written = compare_exchange(cell, constant(12, type), constant(40, type))
        out[2], out[3] = found, written.to(type)
        found, written = compare_exchange(cell, constant(12, type), constant(50, type))
        out[4], out[5] = found, written.to(type)
        store_release(cell.at(1), load_acquire(cell) + 1)

    cell, out = np.array([7, 0], DTYPES[type]), np.zeros(6, DTYPES[type])
    compiled(body, 2, TARGETS[0])(cell, out)
    assert out.tolist() == [7, 12, 12, 1, 40, 0]
    assert cell.tolist() == [40, 41]


@pytest.mark.parametrize("number", [0.1, -1.5, 65504.0, 3e-8, math.inf])
def test_constants_are_what_they_say(number: float) -> None:
    def body(a: Pointer, b: Pointer, c: Pointer) -> None:
        for out, type in ((a, f16), (b, f32), (c, f64)):
            out.cast(type).store(constant(number, type * 4))

    outs = [np.zeros(4, dtype) for dtype in (np.float16, np.float32, np.float64)]
    compiled(body, 3, TARGETS[0])(*outs)
    for out in outs:
        assert (out == np.full(4, number).astype(out.dtype)).all()


# mistakes ----------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[Pointer], object], str]] = {
    "mixed types": (lambda p: p.cast(f32)[0] + p.cast(i32)[0], "operands are f32 and i32"),
    "mixed signs": (lambda p: p.cast(u32)[0] + p.cast(i32)[0], "convert one with .to()"),
    "mixed lanes": (lambda p: p.load(lanes=4) + p.load(lanes=8), "u8x4 and u8x8"),
    "bits of floats": (lambda p: p.cast(f32)[0] & 1, "no meaning for f32"),
    "integer division": (lambda p: p.cast(i32)[0] / 2, "no meaning for i32"),
    "dot2 of signed": (lambda p: dot2(*[p.cast(i8).load(lanes=32)] * 2), "dot2 takes u8 and i8"),
    "dot2_wide": (lambda p: dot2_wide(*[p.load(lanes=16)] * 3), "takes i16 lanes"),
    "dot4_signed": (lambda p: dot4_signed(*[p.load(lanes=32)] * 2), "takes i8 lanes"),
    "wrong store": (lambda p: p.cast(f16).store(p.cast(f32)[0]), "to f16 elements, not f32"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found_while_tracing(name: str) -> None:
    mistake, message = MISTAKES[name]
    with function(Module("test", TARGETS[0]), "f", [("p", ptr)]) as (pointer,):
        assert isinstance(pointer, Pointer)
        with pytest.raises(TypeError) as error:
            mistake(pointer)
    assert message in str(error.value)


def test_values_live_while_a_function_is_traced() -> None:
    with function(Module("test", TARGETS[0]), "f", [("n", i64)]) as (n,):
        pass
    with pytest.raises(RuntimeError, match="while a function is traced"):
        n + 1


def test_types_print_and_measure_themselves() -> None:
    assert [str(t) for t in (f32 * 8, i64, bool_, ptr)] == ["f32x8", "i64", "b1", "p64"]
    assert [t.size for t in (f32 * 8, i64, bool_, ptr, f16)] == [32, 8, 1, 8, 2]
    assert (f32 * 8).scalar == f32
