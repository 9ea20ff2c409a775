"""linear on weights packed as records: the same laws as in `test_linear`, a few shapes each."""

import re

import numpy as np
import pytest
from jit import TARGETS, calls, compute
from test_linear import compiled, linear, linear_spec, runs_here, some_quants
from weights import (
    HALVES,
    RECORDS,
    activation,
    blocks_of,
    exact_weight,
    meaning,
    packed,
    real_weight,
    set_half,
    whole_blocks,
)

from hotloop.ir import grouped
from hotloop.ir.types import FORMATS, TensorType, tensor
from hotloop.lang.target import AARCH64_DOT, AMX, AVX2, AVX512_VNNI, AVX_VNNI

INTEGERS = [name for name in RECORDS if FORMATS[name].integers]
PAIRS = [("f32", name) for name in RECORDS] + [("q8", name) for name in INTEGERS]


def weight_of(format_name: str, rows: int, columns: int) -> TensorType:
    return tensor(format_name, rows, whole_blocks(format_name, columns))


@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_exact_sums(x_format: str, format_name: str) -> None:
    weight, tokens, count = weight_of(format_name, 19, 512), 6, 5
    columns = weight.shape[1]
    data = exact_weight(weight)
    scales = np.random.default_rng(1).choice([0.5, 1.0], (tokens, columns // 32))
    x, values = activation(x_format, some_quants(tokens, columns), scales.astype(np.float32))
    expected = values.astype(np.float64) @ meaning(data, weight).T
    np.testing.assert_array_equal(
        linear(x_format, x, weight, data, tokens, count), expected[:count]
    )


@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_real_numbers_of_several_blocks(x_format: str, format_name: str) -> None:
    """And a token's bits are the same alone as in a block of tokens."""
    weight, tokens = weight_of(format_name, 19, 512), 6
    columns = weight.shape[1]
    data = real_weight(weight)
    quants = some_quants(tokens, columns)
    scales = np.random.default_rng(2).uniform(0.001, 0.02, (tokens, columns // 32))
    scales = scales.astype(np.float32)
    x, values = activation(x_format, quants, scales)
    w = meaning(data, weight)
    y = linear(x_format, x, weight, data, tokens, tokens)
    # Products of a sub-block are summed before its minimum is added.
    error = 64 * 2.0**-24 * (np.abs(values) @ (np.abs(w) + np.abs(w).max()).T)
    assert (np.abs(y - values.astype(np.float64) @ w.T) <= error).all()
    alone, _ = activation(x_format, quants[4:5], scales[4:5])
    np.testing.assert_array_equal(linear(x_format, alone, weight, data, 1, 1), y[4:5])


@pytest.mark.parametrize("format_name", INTEGERS)
def test_every_instruction_set_gives_the_same_bits(format_name: str) -> None:
    """An odd number of groups; one token, and some that do not fill a block, or a tile."""
    weight, tokens = weight_of(format_name, 24, 288), 35
    columns = weight.shape[1]
    scales = np.random.default_rng(4).uniform(0.001, 0.02, (tokens, columns // 32))
    x, _ = activation("q8", some_quants(tokens, columns), scales.astype(np.float32))
    operands = [x, packed(real_weight(weight), weight)]
    targets = (*TARGETS, *filter(runs_here, (AVX2, AVX_VNNI, AVX512_VNNI, AMX)))
    for count in (1, 13, 35):
        compute(linear_spec("q8", weight, tokens), operands, count, grain=8, targets=targets)


@pytest.mark.parametrize("activations", [127, -127])
@pytest.mark.parametrize("format_name", INTEGERS)
def test_no_code_makes_a_sum_overflow(format_name: str, activations: int) -> None:
    """One row for each byte that codes may consist of; on AVX2, too, with its sums in 16 bits."""
    weight = weight_of(format_name, 256, 32)
    data = np.repeat(np.arange(256, dtype=np.uint8), weight.nbytes // 256)
    blocks = blocks_of(data, weight)
    for at in HALVES[format_name]:
        set_half(blocks, at, 0.5)
    if format_name == "mxfp4":
        blocks[:, 0] = 127
    if format_name in grouped.FILE:
        data.view(grouped.FILE[format_name])["scale"] = 0.5
    quants = np.full((5, weight.shape[1]), activations, np.int8)
    x, values = activation("q8", quants, np.ones((5, weight.shape[1] // 32), np.float32))
    expected = values.astype(np.float64) @ meaning(data, weight).T
    targets = tuple(filter(runs_here, (TARGETS[0], AVX2)))
    for tokens in (1, 5):
        spec = linear_spec("q8", weight, tokens)
        y = compute(spec, [x, packed(data, weight)], tokens, grain=8, targets=targets)
        y = y.view(np.float32).reshape(tokens, -1)[:, :256]
        np.testing.assert_allclose(y, expected[:tokens], rtol=1e-6)


@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_it_compiles_for_aarch64(x_format: str, format_name: str) -> None:
    text = compiled(linear_spec(x_format, weight_of(format_name, 64, 512), 16), AARCH64_DOT)
    assert "fmla" in text
    assert not calls(text), "a library function in the middle of a dot product"
    assert x_format == "f32" or "sdot" in text


@pytest.mark.parametrize("format_name", INTEGERS)
def test_avx2_runs_without_calls(format_name: str) -> None:
    text = compiled(linear_spec("q8", weight_of(format_name, 64, 512), 1), AVX2)
    assert "vpmaddubsw" in text
    assert "prefetcht0" in text
    assert not calls(text)


@pytest.mark.parametrize("format_name", INTEGERS)
def test_a_prompt_uses_tiles(format_name: str) -> None:
    text = compiled(linear_spec("q8", weight_of(format_name, 64, 512), 64), AMX)
    assert re.search(r"tilezero.*\n\ttdpbssd\b.*\n\ttilestored", text)
    assert not calls(text)
