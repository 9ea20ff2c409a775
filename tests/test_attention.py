"""attention, attend and combine against their meanings; the cache beyond what is seen holds NaN."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import CHUNK, OPS, infer
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec

DTYPE = {"f16": np.float16, "f32": np.float32}


def keys_in_memory(keys: np.ndarray) -> np.ndarray:
    heads, context, dim = keys.shape
    return keys.reshape(heads, context // 16, 16, dim).transpose(0, 1, 3, 2)


class Case:
    """Random operands of a shape."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        dim: int,
        *,
        first: int,
        tokens: int = 1,
        form: str = "f16",
        context: int | None = None,
        spread: float = 1.0,
    ) -> None:
        context = context or -(-(first + tokens) // 16) * 16
        random = np.random.default_rng(heads * dim + first)
        self.q = random.normal(0, spread, (tokens, heads * dim)).astype(np.float32)
        self.keys, self.values = random.normal(size=(2, kv_heads, context, dim)).astype(DTYPE[form])
        self.pos = np.array([first], np.int32)
        self.attrs = {"heads": heads, "scale": dim**-0.5}
        cache = tensor(form, kv_heads, context, dim)
        q = tensor("f32", tokens, heads * dim)
        types = (q, cache, cache, tensor("i32", 1))
        self.spec = OpSpec("attention", types, q, tuple(self.attrs.items()))

    def buffers(self, count: int) -> list[np.ndarray]:
        seen = int(self.pos[0]) + count
        keys, values = self.keys.copy(), self.values.copy()
        keys[:, seen:], values[:, seen:] = np.nan, np.nan
        return [
            rows_of(self.q),
            buffer_of(keys_in_memory(keys)),
            buffer_of(values),
            buffer_of(self.pos),
        ]

    def computed(self, count: int) -> np.ndarray:
        return from_rows(compute(self.spec, self.buffers(count), count), *self.q.shape)

    def computed_in_chunks(self) -> tuple[np.ndarray, np.ndarray]:
        """The results of attend, and of combine after it."""
        attrs = tuple(self.attrs.items())
        chunks = infer("attend", self.spec.operands, self.attrs)
        attend = OpSpec("attend", self.spec.operands, chunks, attrs)
        partials = compute(attend, self.buffers(1), 1)
        dim = self.keys.shape[2]
        attrs = (("heads", self.attrs["heads"]), ("head_dim", dim))
        q = self.spec.result
        combine = OpSpec("combine", (chunks, tensor("i32", 1)), q, attrs)
        merged = compute(combine, [partials, buffer_of(self.pos)], 1)
        return from_rows(partials, *chunks.shape), from_rows(merged, *q.shape)

    def expected(self) -> np.ndarray:
        return OPS["attention"].meaning(self.q, self.keys, self.values, self.pos, **self.attrs)


def check(case: Case, count: int) -> None:
    y = case.computed(count)
    # Float32 sums over d and over positions in another order than NumPy's, of numbers around 1:
    # their errors grow with the roots of those lengths.
    np.testing.assert_allclose(y[:count], case.expected()[:count], rtol=1e-5, atol=2e-6)
    assert np.isnan(y[count:]).all()


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(1, 1, 2), (2, 2, 64), (3, 1, 20), (4, 2, 12), (9, 3, 64), (14, 2, 16), (5, 1, 5)],
)
def test_it_means_what_numpy_says(form: str, heads: int, kv_heads: int, dim: int) -> None:
    check(Case(heads, kv_heads, dim, first=37, form=form), 1)


@pytest.mark.parametrize("first", [0, 6, 7, 8, 31, 63, 64, 130, 300])
def test_every_number_of_positions(first: int) -> None:
    check(Case(3, 1, 16, first=first, context=304), 1)


@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2), (16, 11), (16, 16)])
@pytest.mark.parametrize("first", [0, 5])
def test_each_token_sees_the_ones_before_it(tokens: int, count: int, first: int) -> None:
    check(Case(6, 2, 16, first=first, tokens=tokens), count)


def test_unused_context_does_not_matter() -> None:
    short = Case(4, 2, 16, first=20)
    long = Case(4, 2, 16, first=20, context=64)
    long.q = short.q
    long.keys[:, :32], long.values[:, :32] = short.keys, short.values
    np.testing.assert_array_equal(short.computed(1), long.computed(1))


def test_a_token_alone_gives_the_bits_that_it_has_in_a_prompt() -> None:
    prompt = Case(6, 2, 20, first=9, tokens=5)
    together = prompt.computed(5)
    for t in range(5):
        alone = Case(6, 2, 20, first=9 + t, context=16)
        alone.q, alone.keys, alone.values = prompt.q[t : t + 1], prompt.keys, prompt.values
        np.testing.assert_array_equal(alone.computed(1)[0], together[t])


def test_large_scores_do_not_overflow() -> None:
    case = Case(3, 1, 64, first=99, spread=300.0)
    y = case.computed(1)
    assert np.isfinite(y).all()
    # Scores of some hundreds err by some 1e-5, and so does their exponential.
    np.testing.assert_allclose(y, case.expected(), rtol=1e-3, atol=1e-4)


def test_nan_in_a_query_stays_in_its_head() -> None:
    case = Case(6, 2, 16, first=10)
    case.q[0, 17] = np.nan
    y = case.computed(1).reshape(6, 16)
    assert np.isnan(y[1]).all()
    assert np.isfinite(np.delete(y, 1, axis=0)).all()


def test_a_long_context() -> None:
    check(Case(9, 3, 64, first=1500), 1)


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "first"),
    [
        (1, 1, 2, 0),
        (9, 3, 64, 37),
        (3, 1, 20, CHUNK - 2),
        (3, 1, 20, CHUNK - 1),
        (3, 1, 20, CHUNK),
        (14, 2, 16, 3 * CHUNK + 17),
        (5, 1, 5, 2 * CHUNK - 1),
    ],
)
def test_chunks_together_are_attention(
    form: str, heads: int, kv_heads: int, dim: int, first: int
) -> None:
    """Split among threads or not, the same bits; what lies beyond the position is not written."""
    case = Case(heads, kv_heads, dim, first=first, form=form, context=5 * CHUNK + 16)
    partials, y = case.computed_in_chunks()
    np.testing.assert_array_equal(y, case.computed(1))
    operands = (case.q, case.keys, case.values, case.pos)
    meaning = OPS["attend"].meaning(*operands, **case.attrs)
    np.testing.assert_allclose(partials, meaning, rtol=1e-5, atol=1e-5)
    attrs = {"heads": heads, "head_dim": dim}
    merged = OPS["combine"].meaning(meaning, case.pos, **attrs)
    np.testing.assert_allclose(merged, case.expected(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, merged, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize("first", [CHUNK - 20, CHUNK - 1, 2 * CHUNK])
def test_a_prompt_across_chunks_gives_the_bits_of_single_tokens(form: str, first: int) -> None:
    prompt = Case(6, 2, 20, first=first, tokens=40, form=form)
    together = prompt.computed(37)
    for t in (0, 1, 15, 16, 19, 20, 21, 36):
        alone = Case(6, 2, 20, first=first + t, context=prompt.keys.shape[1], form=form)
        alone.q, alone.keys, alone.values = prompt.q[t : t + 1], prompt.keys, prompt.values
        np.testing.assert_array_equal(alone.computed_in_chunks()[1][0], together[t])


def test_attend_divides_any_work_over_its_rows() -> None:
    """More rows than work, less work than rows: every piece is done once (NaN were it not)."""
    for first in (0, 5 * CHUNK, 11 * CHUNK + 3):
        partials, y = Case(2, 2, 2, first=first, context=16 * CHUNK).computed_in_chunks()
        written = np.isfinite(partials.reshape(2, 16, 4)).all(-1)
        assert (written == (np.arange(16) * CHUNK <= first)).all()
        assert np.isfinite(y).all()
