"""linear against integers where float32 is exact, and against float64 where it is not.

`compute` runs every case on this CPU's instructions and on plain vectors, in one tile, in single
groups and backwards, and all of them must give the same bits.
"""

import re

import numpy as np
import pytest
from jit import TARGETS, assembly, calls, compute, from_rows
from weights import (
    BLOCKS,
    PLAIN,
    activation,
    blocks_of,
    exact_weight,
    meaning,
    packed,
    real_weight,
    set_half,
)

from hotloop.ir.types import TensorType, tensor
from hotloop.kernels import dot_blocks
from hotloop.kernels.tile import OpSpec, define, q8_stride, row_stride
from hotloop.lang import Module, Target
from hotloop.lang.target import (
    AARCH64,
    AARCH64_DOT,
    AARCH64_I8MM,
    AMX,
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    host,
)

PAIRS = [("f32", name) for name in PLAIN + BLOCKS] + [("q8", name) for name in BLOCKS]


def linear_spec(x_format: str, weight: TensorType, tokens: int) -> OpSpec:
    rows, columns = weight.shape
    return OpSpec(
        "linear", (tensor(x_format, tokens, columns), weight), tensor("f32", tokens, rows)
    )


def linear(
    x_format: str, x: np.ndarray, weight: TensorType, data: np.ndarray, tokens: int, count: int
) -> np.ndarray:
    """The op's result; rows from `count` on must be as they were, which is NaN."""
    spec = linear_spec(x_format, weight, tokens)
    buffer = compute(spec, [x, packed(data, weight)], count, grain=8)
    y = from_rows(buffer, tokens, weight.shape[0])
    assert np.isnan(buffer.view(np.float32).reshape(tokens, -1)[count:]).all()
    return y[:count]


def some_quants(tokens: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, (tokens, columns)).astype(np.int8)


@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "count"),
    [(1, 32, 1, 1), (7, 64, 3, 2), (8, 576, 4, 4), (9, 96, 5, 0), (19, 64, 16, 11)],
)
@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_exact_sums(
    x_format: str, format_name: str, rows: int, columns: int, tokens: int, count: int
) -> None:
    weight = tensor(format_name, rows, columns)
    data = exact_weight(weight, seed=columns)
    scales = np.random.default_rng(1).choice([0.5, 1.0], (tokens, columns // 32))
    x, values = activation(x_format, some_quants(tokens, columns), scales.astype(np.float32))
    expected = values.astype(np.float64) @ meaning(data, weight).T
    y = linear(x_format, x, weight, data, tokens, count)
    np.testing.assert_array_equal(y, expected[:count])


@pytest.mark.parametrize(("rows", "columns", "tokens"), [(9, 20, 3), (17, 33, 1), (3, 1, 2)])
@pytest.mark.parametrize("format_name", PLAIN)
def test_columns_that_fill_no_vector(
    format_name: str, rows: int, columns: int, tokens: int
) -> None:
    weight = tensor(format_name, rows, columns)
    data = exact_weight(weight)
    x, values = activation("f32", some_quants(tokens, columns), np.ones((tokens, 2), np.float32))
    y = linear("f32", x, weight, data, tokens, tokens)
    np.testing.assert_array_equal(y, values.astype(np.float64) @ meaning(data, weight).T)


@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_real_numbers(x_format: str, format_name: str) -> None:
    """131 rows, 576 columns: within what float32's rounding of each product and sum allows."""
    tokens, weight = 1, tensor(format_name, 131, 576)
    data = real_weight(weight)
    scales = np.random.default_rng(2).uniform(0.001, 0.02, (tokens, 18)).astype(np.float32)
    x, values = activation(x_format, some_quants(tokens, 576), scales)
    w = meaning(data, weight)
    y = linear(x_format, x, weight, data, tokens, tokens)
    # 4-bit products are summed before the minimum is added: up to 16 scales of 0.3 either way.
    error = 64 * 2.0**-24 * (np.abs(values) @ (np.abs(w) + 5).T)
    assert (np.abs(y - values.astype(np.float64) @ w.T) <= error).all()


@pytest.mark.parametrize("tokens", [3, 9])
@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_tokens_do_not_see_each_other(x_format: str, format_name: str, tokens: int) -> None:
    """A token's bits are the same alone, in a block of tokens, and in what a block leaves over."""
    weight = tensor(format_name, 8, 64)
    data = real_weight(weight)
    quants = some_quants(tokens, 64)
    scales = np.random.default_rng(3).uniform(0.001, 0.02, (tokens, 2)).astype(np.float32)
    x, _ = activation(x_format, quants, scales)
    together = linear(x_format, x, weight, data, tokens, tokens)
    for t in range(tokens):
        alone, _ = activation(x_format, quants[t : t + 1], scales[t : t + 1])
        np.testing.assert_array_equal(
            linear(x_format, alone, weight, data, 1, 1), together[t : t + 1]
        )


@pytest.mark.parametrize("activations", [127, -127])
@pytest.mark.parametrize(
    ("format_name", "quants"), [("q4_1", 0xFF), ("q4_0", 0xFF), ("q8_0", 0x80), ("q8_0", 0x7F)]
)
def test_the_largest_products_do_not_overflow(
    format_name: str, quants: int, activations: int
) -> None:
    """Every nibble 15, every int8 weight -128: the sums in 16 bits are at their limits."""
    weight = tensor(format_name, 8, 64)
    data = np.full(weight.nbytes, quants, np.uint8)
    set_half(blocks_of(data, weight), 0, 1)
    if format_name == "q4_1":
        set_half(blocks_of(data, weight), 2, -2)
    x, values = activation(
        "q8", np.full((5, 64), activations, np.int8), np.ones((5, 2), np.float32)
    )
    y = linear("q8", x, weight, data, 5, 5)
    np.testing.assert_array_equal(y, values.astype(np.float64) @ meaning(data, weight).T)


def test_zeros_and_nan() -> None:
    weight = tensor("q4_0", 8, 64)
    data = real_weight(weight)
    x, _ = activation("q8", np.zeros((2, 64), np.int8), np.zeros((2, 2), np.float32))
    assert (linear("q8", x, weight, data, 2, 2) == 0).all()
    row = blocks_of(data, weight)[2 * 3 : 2 * 4]
    set_half(row, 0, np.nan)
    y = linear("q8", x, weight, data, 2, 2)
    assert np.isnan(y[:, 3]).all()
    assert (np.delete(y, 3, axis=1) == 0).all()


def runs_here(target: Target) -> bool:
    return target.triple == host().triple and target.features <= host().features


@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "count"),
    [
        (40, 288, 1, 1),
        (40, 288, 35, 35),
        (40, 32, 35, 17),
        (16, 64, 16, 8),
        (24, 224, 16, 16),
        (24, 224, 16, 13),
        (9, 256, 9, 5),
    ],
)
@pytest.mark.parametrize("format_name", BLOCKS)
def test_every_instruction_set_gives_the_same_bits(
    format_name: str, rows: int, columns: int, tokens: int, count: int
) -> None:
    """Odd numbers of groups, tokens beyond a block, 32s beyond eight; vectors of any width."""
    weight = tensor(format_name, rows, columns)
    scales = np.random.default_rng(4).uniform(0.001, 0.02, (tokens, columns // 32))
    x, _ = activation("q8", some_quants(tokens, columns), scales.astype(np.float32))
    targets = (*TARGETS, *filter(runs_here, (AVX2, AVX_VNNI, AVX512_VNNI, AMX)))
    spec = linear_spec("q8", weight, tokens)
    operands = [x, packed(real_weight(weight), weight)]
    compute(spec, operands, count, grain=8, targets=targets)


def compiled(spec: OpSpec, target: Target) -> str:
    module = Module("test", target)
    define(module, spec, "tile").linkage = "external"
    return assembly(module)


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_it_compiles_for_aarch64(x_format: str, format_name: str, tokens: int) -> None:
    text = compiled(linear_spec(x_format, tensor(format_name, 64, 576), tokens), AARCH64)
    assert "fmla" in text
    assert not calls(text), "a library function in the middle of a dot product"


@pytest.mark.parametrize("format_name", BLOCKS)
def test_avx2_runs_from_registers(format_name: str) -> None:
    """One token, the case that memory must limit: 8-bit products, no call, no spilled vector."""
    text = compiled(linear_spec("q8", tensor(format_name, 64, 576), 1), AVX2)
    assert "vpmaddubsw" in text
    assert "vcvtph2ps" in text
    assert "prefetcht0" in text
    assert not calls(text)
    assert not [line for line in text.splitlines() if "ymm" in line and "(%rsp)" in line]


@pytest.mark.parametrize("format_name", BLOCKS)
@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        (AVX_VNNI, "vpdpbusd.*ymm"),
        (AVX512_VNNI, r"vpdpbusd.*\{1to16\}, %zmm"),
        (AMX, r"tilezero.*\n\ttdpb(su|ss)d\b.*\n(\tleaq.*\n)?\ttilestored"),
        (AARCH64_DOT, r"ld1r(.*\n)+\tsdot"),
        (AARCH64_I8MM, r"zip1(.*\n)+\tsmmla"),
    ],
)
def test_a_prompt_uses_the_widest_dot_product(
    target: Target, instruction: str, format_name: str
) -> None:
    """Activations go to the instruction as they lie, one for all rows; nothing is spilled."""
    text = compiled(linear_spec("q8", tensor(format_name, 64, 576), 64), target)
    assert re.search(instruction, text)
    assert "pmaddubsw" not in text
    assert not calls(text)
    assert not re.search(r"[yz]mm.*\(%rsp\)|\tstr\tq\d+, \[sp", text)


@pytest.mark.parametrize("format_name", BLOCKS)
def test_rows_and_tokens_in_pairs_give_the_same_bits(
    format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel for `smmla`, with plain arithmetic in the instruction's place."""
    weight, tokens = tensor(format_name, 24, 96), 7
    scales = np.random.default_rng(5).uniform(0.001, 0.02, (tokens, 3)).astype(np.float32)
    x, _ = activation("q8", some_quants(tokens, 96), scales)
    operands = [x, packed(real_weight(weight), weight)]
    spec = linear_spec("q8", weight, tokens)
    expected = compute(spec, operands, tokens, grain=8)
    plain = Target(host().triple, host(portable=True).cpu, frozenset({"sse2"}))
    monkeypatch.setattr(dot_blocks, "pairs_pay", lambda tokens: len(tokens) % 2 == 0)
    paired = compute(spec, operands, tokens, grain=8, targets=(plain,))
    np.testing.assert_array_equal(paired, expected)


@pytest.mark.parametrize("width", [1, 16, 17, 576, 2048, 8192, 128256])
def test_rows_are_an_odd_number_of_lines_apart(width: int) -> None:
    """Rows a power of two apart would share a few sets of a cache."""
    assert row_stride(width) >= width
    assert row_stride(width) * 4 % 128 == 64
    if width % 32 == 0:
        assert q8_stride(width) >= width + width // 2
        assert q8_stride(width) % 128 == 64
