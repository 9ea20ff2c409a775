"""sample: the compiled kernel draws the very token of its meaning, which follows its rule."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jit import TARGETS, Jit, aligned, buffer_of, rows_of, tile_function

from hotloop.ir import sample as meaning
from hotloop.ir.ops import infer
from hotloop.ir.types import CONTROL, tensor
from hotloop.kernels.philox import philox
from hotloop.kernels.tile import OpSpec
from hotloop.lang import Module, Target, function, ptr, u64

CAPACITY = 64
ONE = tensor("i32", 1)


def control_block(**fields: float) -> np.ndarray:
    control = np.zeros(1, CONTROL)
    settings = {"temperature": 1.0, "top_p": 1.0, "repeat_penalty": 1.0, **fields}
    for name, value in settings.items():
        control[name] = value
    return control


class Sampler:
    """The compiled kernel for a row of logits, set up once and called often."""

    def __init__(
        self,
        logits: np.ndarray,
        ring: np.ndarray | None = None,
        target=TARGETS[0],
        bias: np.ndarray | None = None,
    ):
        self.logits = np.asarray(logits, np.float32)[None]
        self.ring = np.zeros(CAPACITY, np.int32) if ring is None else ring
        self.bias = [] if bias is None else [np.asarray(bias, np.float32)[None]]
        row = tensor("f32", *self.logits.shape)
        types = [row, tensor("i32", 1, CAPACITY), ONE, tensor("control", 1)]
        types += [row] * len(self.bias)
        self._tile = tile_function(OpSpec("sample", tuple(types), ONE), target)
        self._row, self._ring = rows_of(self.logits), buffer_of(self.ring)
        self._bias = [buffer_of(bias) for bias in self.bias]

    def __call__(self, pos: int = 5, **fields: float) -> int:
        before, result = self._row.copy(), aligned(64)
        operands = [buffer_of(np.int32([pos])), buffer_of(control_block(**fields))]
        self._tile([self._row, self._ring, *operands, *self._bias], result, 0, 1, 1)
        np.testing.assert_array_equal(self._row, before)
        return int(result.view(np.int32)[0])

    def expected(self, pos: int = 5, **fields: float) -> int:
        at, control = np.array([pos], np.int32), control_block(**fields)
        return int(meaning.sample(self.logits, self.ring[None], at, control, *self.bias)[0])


# random numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 11, 2**64 - 1])
def test_philox_is_numpys(seed: int) -> None:
    module = Module("philox", TARGETS[0])
    params = [("seed", u64), ("position", u64), ("out", ptr)]
    with function(module, "first", params, exported=True) as (key, position, out):
        out.cast(u64).store(philox(key, position))
    jit, out = Jit(module), np.zeros(1, np.uint64)
    first = jit.function("first", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
    for position in (1, 2, 1000, 2**31 - 1):
        # NumPy counts on before its first block.
        key, counter = np.array([[seed, 0, 0, 0], [position - 1, 0, 0, 0]], np.uint64)
        numpys = np.random.Philox(key=key[:2], counter=counter).random_raw()
        first(seed, position, out.ctypes.data)
        assert meaning.philox(seed, position) == numpys == out[0]


# the kernel is its meaning -----------------------------------------------------------------------

SHAPES = {
    "normal": lambda random, n: random.normal(0, 3, n),
    "peaked": lambda random, n: random.normal(0, 12, n),
    "flat": lambda random, n: random.normal(0, 1e-3, n),
    "ties": lambda random, n: random.integers(-2, 3, n),
    "equal": lambda random, n: np.zeros(n),
    "huge": lambda random, n: random.normal(0, 1e37, n),
    "tiny": lambda random, n: random.normal(0, 1e-40, n),
    "broken": lambda random, n: random.choice([np.nan, np.inf, -np.inf, -1, 0, 1], n),
    "masked": lambda random, n: np.where(np.arange(n) == n // 2, 3.0, -np.inf),
}
FIELDS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 1e-30, 0.1, 0.8, 1.0, 1.7, 1e30, math.inf, math.nan]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 40, 130, 131, 999, 10**6]),
        "top_p": st.sampled_from([-1.0, 0.0, 1e-6, 0.3, 0.9, 0.95, 0.999999, 1.0, 2.0, math.nan]),
        "min_p": st.sampled_from([-1.0, 0.0, 1e-45, 1e-4, 0.05, 0.5, 1.0, 3.0, math.nan]),
        "repeat_penalty": st.sampled_from([1.0, 1.1, 1.3, 0.5, 0.0, -1.0, math.inf, math.nan]),
        "repeat_last_n": st.sampled_from([-1, 0, 1, 7, 1000]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.7, -2.0, 1e38]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.3, -0.1, 1e38]),
        "prompt": st.sampled_from([-1, 0, 3, 40, 1000]),
    }
)


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
@settings(max_examples=250)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    vocabulary=st.sampled_from([1, 2, 31, 131, 1000, 4099]),
    noise=st.integers(0, 2**32 - 1),
    pos=st.integers(0, CAPACITY - 2),
    fields=FIELDS,
)
def test_it_draws_the_token_of_its_meaning(
    target: Target, shape: str, vocabulary: int, noise: int, pos: int, fields: dict[str, Any]
) -> None:
    random = np.random.default_rng(noise)
    logits = SHAPES[shape](random, vocabulary)
    ring = random.integers(-3, vocabulary + 3, CAPACITY, dtype=np.int32)
    sampler = Sampler(logits, ring, target)
    assert sampler(pos, **fields) == sampler.expected(pos, **fields)


@pytest.mark.parametrize("fields", [{}, {"top_k": 40}, {"top_p": 0.9}, {"temperature": 0}])
def test_a_large_vocabulary(fields: dict[str, float]) -> None:
    sampler = Sampler(np.random.default_rng(2).normal(0, 3, 49152))
    for pos in range(20):
        assert sampler(pos, **fields) == sampler.expected(pos, **fields)


# the meaning is the rule -------------------------------------------------------------------------


def kept_by_sorting(row: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The rule in float64, by sorting; ties with the last one kept are kept."""
    ordered = np.sort(row.astype(np.float64))[::-1]
    limit = ordered[top_k - 1] if 0 < top_k < len(row) else -np.inf
    left = ordered[ordered >= limit]
    running = np.cumsum(np.exp(left - left[0]))
    limit = max(limit, left[np.argmax(running >= top_p * running[-1])])
    return row >= max(limit, ordered[0] + math.log(min_p) if min_p else -np.inf)


@settings(max_examples=200)
@given(
    noise=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    top_k=st.integers(0, 140),
    top_p=st.sampled_from([0.01, 0.31, 0.77, 0.95, 0.99]),
    min_p=st.sampled_from([0.0, 0.01, 0.07, 0.5]),
)
def test_thresholds_keep_what_sorting_keeps(
    noise: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = np.random.default_rng(noise).normal(0, spread, 131).astype(np.float32)
    limit = meaning.threshold(row, top_k, np.float32(top_p), np.float32(min_p))
    np.testing.assert_array_equal(row >= limit, kept_by_sorting(row, top_k, top_p, min_p))


def test_tokens_come_as_often_as_softmax_says() -> None:
    logits, temperature, draws = np.linspace(-2, 2, 40), 0.7, 8_000
    sampler = Sampler(logits)
    seeds = ((seed, pos) for seed in range(draws // 50) for pos in range(50))
    drawn = [sampler(pos, seed=seed, temperature=temperature) for seed, pos in seeds]
    weights = np.exp(logits / temperature)
    expected = draws * weights / weights.sum()
    chi_square = ((np.bincount(drawn, minlength=40) - expected) ** 2 / expected).sum()
    # 39 degrees of freedom: 72.1 is the 99.9th percentile. The seeds are fixed, so this is too.
    assert chi_square < 72.1


# the corners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 31, 32, 33, 131, 4096])
def test_greedy_takes_the_first_of_equals(n: int) -> None:
    for at in {0, n // 2, n - 1}:
        logits = np.full(n, -1.0)
        logits[at:] = 5
        assert Sampler(logits)(temperature=0) == at


@pytest.mark.parametrize("nothing", [np.nan, -np.inf])
def test_greedy_without_a_number_takes_token_0(nothing: float) -> None:
    assert Sampler(np.full(131, nothing))(temperature=0) == 0


def test_greedy_passes_over_nan() -> None:
    logits = np.full(131, np.nan)
    logits[[70, 100]] = [-5, -4]
    assert Sampler(logits)(temperature=0) == 100


@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_all_but_one_impossible(fields: dict[str, float]) -> None:
    logits = np.full(131, -np.inf)
    logits[77] = -3
    assert {Sampler(logits)(pos, **fields) for pos in range(20)} == {77}


def test_a_tiny_temperature_is_greedy() -> None:
    logits = np.random.default_rng(4).normal(size=500)
    assert {Sampler(logits)(pos, temperature=1e-38) for pos in range(20)} == {logits.argmax()}


def test_top_k_keeps_ties_together() -> None:
    sampler = Sampler([1, 3, 2, 2, 2, 0])
    assert {sampler(seed=seed, top_k=2) for seed in range(200)} == {1, 2, 3, 4}


def test_a_token_that_occurs_twice_is_penalised_once() -> None:
    # 6 / 2 is above 2, and 6 / 4 would not be; token 2 shows the other side of zero.
    ring = np.zeros(CAPACITY, np.int32)
    ring[2:6] = [0, 0, 2, 2]
    sampler = Sampler([6, 2, -1], ring)
    fields = {"temperature": 0, "repeat_penalty": 2, "repeat_last_n": 4}
    assert sampler(**fields) == sampler.expected(**fields) == 0


def test_the_penalty_looks_back_just_so_far() -> None:
    ring = np.full(CAPACITY, 1, np.int32)
    ring[[2, 5, 6]] = [0, 3, 3]
    sampler = Sampler([9, 1, 8, 7], ring)
    penalised = {"temperature": 0, "repeat_penalty": 100}
    assert sampler(pos=5, repeat_last_n=4, **penalised) == 2
    assert sampler(pos=5, repeat_last_n=3, **penalised) == 0
    assert sampler(pos=1, repeat_last_n=99, **penalised) == 0


def test_seeds_and_positions_draw_apart() -> None:
    sampler = Sampler(np.zeros(1000))
    assert len({sampler(pos) for pos in range(50)}) > 40
    assert len({sampler(seed=2**64 - 1 - seed) for seed in range(50)}) > 40


# what the output costs, and the bias -------------------------------------------------------------


def test_frequency_counts_and_presence_does_not() -> None:
    ring = np.array([0, 0, 0, 1, 2, 2, *[9] * 58], np.int32)
    sampler = Sampler([5.0, 4.5, 4.4, 0.0], ring)
    greedy = {"temperature": 0, "pos": 5}
    assert sampler(**greedy, prompt=3) == 0  # the prompt does not count, and costs nothing
    assert sampler(**greedy, prompt=3, frequency_penalty=1) == 0
    assert sampler(**greedy, prompt=0, presence_penalty=0.7) == 0  # 4.3 3.8 3.7
    assert sampler(**greedy, prompt=0, frequency_penalty=0.3) == 1  # 4.1 4.2 3.8
    assert sampler(**greedy, prompt=3, presence_penalty=-2) == 1  # 5.0 6.5 6.4
    assert sampler(**greedy, prompt=3, frequency_penalty=-2) == 2  # 5.0 6.5 8.4
    both = {"presence_penalty": -2, "frequency_penalty": 0.5}
    assert sampler(**greedy, prompt=3, **both) == 1  # 5.0 6.0 5.4


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
@settings(max_examples=60)
@given(
    vocabulary=st.sampled_from([1, 31, 131, 1000]),
    noise=st.integers(0, 2**32 - 1),
    kept=st.sampled_from([1, 3, 500]),
    fields=FIELDS,
)
def test_a_bias_is_added(
    target: Target, vocabulary: int, noise: int, kept: int, fields: dict[str, Any]
) -> None:
    random = np.random.default_rng(noise)
    ring = random.integers(-5, vocabulary + 5, CAPACITY, dtype=np.int32)
    bias = np.full(vocabulary, -np.inf)
    allowed = random.integers(0, vocabulary, kept)
    bias[allowed] = random.normal(0, 5, kept)
    sampler = Sampler(random.normal(0, 3, vocabulary), ring, target, bias)
    for biased in (0, 1):
        with_bias = fields | {"biased": biased}
        drawn = sampler(9, **with_bias)
        assert drawn == sampler.expected(9, **with_bias)
    if fields["presence_penalty"] < 10 and fields["frequency_penalty"] < 10:
        assert drawn in allowed


# sequences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
def test_each_sequence_is_sampled_as_if_alone(target: Target) -> None:
    """Rows of a batch have their own logits, history, position, and parameters."""
    random = np.random.default_rng(4)
    rows, count, vocabulary = 5, 4, 77
    logits = random.normal(0, 3, (rows, vocabulary)).astype(np.float32)
    ring = random.integers(0, vocabulary, (rows, CAPACITY), dtype=np.int32)
    pos = random.integers(0, CAPACITY - 1, rows, dtype=np.int32)
    fields = [
        {"temperature": 0},
        {"seed": 3, "repeat_penalty": 1.5, "repeat_last_n": 9},
        {"seed": 4, "top_k": 5},
        {"temperature": 0, "repeat_penalty": 4.0, "repeat_last_n": 64},
        {},
    ]
    control = np.concatenate([control_block(**of_row) for of_row in fields])
    types = (
        tensor("f32", rows, vocabulary),
        tensor("i32", rows, CAPACITY),
        tensor("i32", rows),
        tensor("control", rows),
    )
    spec = OpSpec("sample", types, infer("sample", types, {}))
    operands = [rows_of(logits), buffer_of(ring), buffer_of(pos), buffer_of(control)]
    result = aligned(64)
    tile = tile_function(spec, target)
    for row in reversed(range(rows)):
        tile(operands, result, row, row + 1, count)
    tokens = result.view(np.int32)[:rows]
    for row in range(count):
        of_row = slice(row, row + 1)
        alone = meaning.sample(logits[of_row], ring[of_row], pos[of_row], control[of_row])
        assert tokens[row] == alone[0]
    assert tokens[count] == -1  # not written
