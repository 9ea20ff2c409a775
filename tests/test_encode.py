"""Quantising against the `gguf` package's own quantisers, to the bit."""

import gguf
import numpy as np
import pytest

from hotloop.ir.encode import ENCODED, encode
from hotloop.ir.formats import dequantise
from hotloop.ir.types import tensor


def theirs(values: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quantize(values.reshape(1, -1), gguf.GGMLQuantizationType[name.upper()])


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    normal = random.normal(0, 0.05, 4096 * 32)
    halves = random.integers(-254, 255, 64 * 32) / 2
    halves[::32] = 127
    return {
        "normal numbers": normal,
        "more than a chunk": np.resize(normal, (1 << 15) * 3 + 32),
        "halves": halves,
        "just below halves": np.nextafter(halves.astype(np.float32), np.float32(0)),
        "constants": np.repeat(random.normal(0, 1, 8), 32),
        "zeros": np.zeros(64),
        "negative zeros": -np.zeros(32),
        "beyond float16": random.normal(0, 1e6, 64 * 32),
        "below float16": random.normal(0, 1e-9, 64 * 32),
    }


@pytest.mark.parametrize("case", inputs())
@pytest.mark.parametrize("name", ENCODED)
def test_bytes_are_those_of_gguf(name: str, case: str) -> None:
    values = inputs()[case].astype(np.float32)
    with np.errstate(over="ignore"):
        ours = encode(values, name)
    np.testing.assert_array_equal(ours, theirs(values, name).reshape(-1))


@pytest.mark.parametrize("name", ENCODED)
def test_scales_without_an_inverse_make_zeros(name: str) -> None:
    """Theirs divide by zero here."""
    values = np.random.default_rng(0).normal(0, 1e-39, (2, 32)).astype(np.float32)
    data = encode(values, name)
    assert (dequantise(data, tensor(name, 2, 32)) == 0).all()
