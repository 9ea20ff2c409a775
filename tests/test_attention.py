"""attention, attend and combine against their meanings; the cache beyond what is seen holds NaN."""

import copy

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import CHUNK, OPS, OpTypeError, infer
from hotloop.ir.ops.cache import SCALE_BYTES, encoded
from hotloop.ir.types import TensorType, tensor
from hotloop.kernels.tile import OpSpec

DTYPE = {"f16": np.float16, "f32": np.float32, "i8": np.int8}
FORMS = list(DTYPE)


def keys_in_memory(keys: np.ndarray) -> np.ndarray:
    pages, heads, page, dim = keys.shape
    if keys.dtype == np.int8:
        width = dim - SCALE_BYTES
        codes = keys[..., :width].reshape(pages, heads, page // 16, 16, width // 2, 2)
        return codes_and_scales(codes.transpose(0, 1, 2, 4, 3, 5), keys)
    return keys.reshape(pages, heads, page // 16, 16, dim).transpose(0, 1, 2, 4, 3)


def values_in_memory(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.int8:
        return values
    pages, heads, page, dim = values.shape
    width = dim - SCALE_BYTES
    codes = values[..., :width].reshape(pages, heads, page // 2, 2, width)
    return codes_and_scales(codes.transpose(0, 1, 2, 4, 3), values)


def codes_and_scales(codes: np.ndarray, cache: np.ndarray) -> np.ndarray:
    """All codes of a head in a page, then all its scales."""
    rows = [part.reshape(*cache.shape[:2], -1) for part in (codes, cache[..., -SCALE_BYTES:])]
    return np.concatenate(rows, axis=-1)


class Case:
    """Random operands of a shape: tokens of one sequence from `first` on, or (`at`) of several.

    Each sequence's chunks lie in pages of their own, in no order; what no token sees holds NaN.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        dim: int,
        *,
        first: int = 0,
        tokens: int = 1,
        at: tuple[int, ...] = (),
        form: str = "f16",
        context: int | None = None,
        spread: float = 1.0,
        window: int = 0,
        softcap: float = 0.0,
        sinks: bool = False,
    ) -> None:
        context = context or (max(at, default=first + tokens - 1) + 1)
        tokens = len(at) or tokens
        random = np.random.default_rng(heads * dim + first)
        self.q = random.normal(0, spread, (tokens, heads * dim)).astype(np.float32)
        sequences, chunks = len(at) or 1, -(-context // CHUNK)
        page = min(CHUNK, -(-context // 16) * 16)
        shape = (sequences * chunks + 1, kv_heads, page, dim)
        numbers = random.normal(size=(2, *shape)).astype(np.float32)
        if form == "i8":
            self.keys, self.values = encoded(numbers)
        else:
            self.keys, self.values = numbers.astype(DTYPE[form])
        self.pages = random.permutation(shape[0])[:-1].reshape(sequences, chunks).astype(np.int32)
        self.pos = np.array(at or [first], np.int32)
        self.attrs = {"heads": heads, "scale": dim**-0.5, "softcap": softcap, "window": window}
        self.sinks = [random.normal(1, 2, heads).astype(np.float32)] if sinks else []
        self.types: tuple[TensorType, ...] = (
            tensor("f32", tokens, heads * dim),
            tensor(form, *self.keys.shape),
            tensor(form, *self.keys.shape),
            tensor("i32", sequences),
            tensor("i32", sequences, chunks),
        )
        self.spec = self._spec()

    def _spec(self) -> OpSpec:
        types = (*self.types, *(tensor("f32", len(sinks)) for sinks in self.sinks))
        return OpSpec("attention", types, types[0], tuple(self.attrs.items()))

    def alone(self, token: int) -> "Case":
        """The token by itself, on the same cache."""
        case = copy.copy(self)
        batch = len(self.pos) > 1
        case.q = self.q[token : token + 1]
        case.pos = self.pos[token : token + 1] if batch else self.pos + np.int32(token)
        case.pages = self.pages[token : token + 1] if batch else self.pages
        q, cache, *_, pages = self.types
        case.types = (
            tensor("f32", 1, q.shape[1]),
            cache,
            cache,
            tensor("i32", 1),
            tensor("i32", 1, pages.shape[1]),
        )
        case.spec = case._spec()
        return case

    @property
    def nothing(self) -> float:
        """NaN; as bytes of an i8 cache, codes of -1 whose scales are NaN."""
        return -1 if self.keys.dtype == np.int8 else np.nan

    def hidden(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values with NaN where none of the first `count` tokens looks."""
        seen = self.pos + 1 if len(self.pos) > 1 else self.pos + count
        seen = np.where(np.arange(len(seen)) < count, seen, 0)
        out = [np.full_like(cache, self.nothing) for cache in (self.keys, self.values)]
        earliest = self.pos + 1 - (self.attrs["window"] or np.max(self.pos) + 1)
        for first, last, row in zip(earliest, seen, self.pages, strict=True):
            for chunk, page in enumerate(row):
                start, stop = (min(max(int(at) - chunk * CHUNK, 0), CHUNK) for at in (first, last))
                for hidden, cache in zip(out, (self.keys, self.values), strict=True):
                    hidden[page, :, start:stop] = cache[page, :, start:stop]
        return out[0], out[1]

    def buffers(self, count: int) -> list[np.ndarray]:
        keys, values = self.hidden(count)
        arrays = keys_in_memory(keys), values_in_memory(values), self.pos, self.pages
        return [rows_of(self.q), *map(buffer_of, arrays)]

    def computed(self, count: int) -> np.ndarray:
        buffers = [*self.buffers(count), *map(buffer_of, self.sinks)]
        return from_rows(compute(self.spec, buffers, count), *self.q.shape)

    def computed_in_chunks(self, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The results of attend, and of combine after it."""
        chunks = infer("attend", self.types, self.attrs)
        attend = OpSpec("attend", self.types, chunks, self.spec.attrs)
        partials = compute(attend, self.buffers(count), count)
        q = self.spec.result
        types = (chunks, self.types[3], *self.spec.operands[5:])
        combine = OpSpec("combine", types, q, tuple(self.combining.items()))
        buffers = [partials, buffer_of(self.pos), *map(buffer_of, self.sinks)]
        merged = compute(combine, buffers, count)
        return from_rows(partials, *chunks.shape), from_rows(merged, *q.shape)

    @property
    def combining(self) -> dict[str, float]:
        """The attributes of combine."""
        heads, window = (self.attrs[name] for name in ("heads", "window"))
        return {"head_dim": self.q.shape[1] // heads, "heads": heads, "window": window}

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.q, self.keys, self.values, self.pos, self.pages

    def expected(self) -> np.ndarray:
        return OPS["attention"].meaning(*self.operands, *self.sinks, **self.attrs)


def close(found: np.ndarray, meaning: np.ndarray, form: str = "f16", atol: float = 2e-6) -> None:
    """Float32 sums over d and over positions in another order than NumPy's, of numbers around 1.

    Their errors grow with the roots of those lengths. With codes in the cache, kernels round
    the weights of values to a 65,534th of the largest, some fifty times as much.
    """
    more = 100 if form == "i8" else 1
    np.testing.assert_allclose(found, meaning, rtol=1e-5 * more, atol=atol * more)


def check(case: Case, count: int, form: str = "f16") -> None:
    y = case.computed(count)
    close(y[:count], case.expected()[:count], form)
    assert np.isnan(y[count:]).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(1, 1, 2), (2, 2, 64), (3, 1, 20), (4, 2, 12), (9, 3, 64), (14, 2, 16), (5, 1, 5)],
)
def test_it_means_what_numpy_says(form: str, heads: int, kv_heads: int, dim: int) -> None:
    check(Case(heads, kv_heads, dim, first=37, form=form), 1, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [0, 6, 7, 8, 31, 63, 64, 130, 300])
def test_every_number_of_positions(form: str, first: int) -> None:
    check(Case(3, 1, 16, first=first, context=304, form=form), 1, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2), (16, 11), (16, 16)])
@pytest.mark.parametrize("first", [0, 5])
def test_each_token_sees_the_ones_before_it(form: str, tokens: int, count: int, first: int) -> None:
    check(Case(6, 2, 16, first=first, tokens=tokens, form=form), count, form)


def test_unused_context_does_not_matter() -> None:
    short = Case(4, 2, 16, first=20)
    long = Case(4, 2, 16, first=20, context=64)
    long.q = short.q
    long.pages = short.pages
    long.keys[:, :, :32], long.values[:, :, :32] = short.keys, short.values
    np.testing.assert_array_equal(short.computed(1), long.computed(1))


def test_a_token_alone_gives_the_bits_that_it_has_in_a_prompt() -> None:
    prompt = Case(6, 2, 20, first=9, tokens=5)
    together = prompt.computed(5)
    for t in range(5):
        np.testing.assert_array_equal(prompt.alone(t).computed(1)[0], together[t])


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


@pytest.mark.parametrize("form", FORMS)
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
    meaning = OPS["attend"].meaning(*case.operands, **case.attrs)
    close(partials, meaning, form, atol=1e-5)
    merged = OPS["combine"].meaning(meaning, case.pos, **case.combining)
    np.testing.assert_allclose(merged, case.expected(), rtol=1e-5, atol=1e-6)
    close(y, merged, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [CHUNK - 20, CHUNK - 1, 2 * CHUNK])
def test_a_prompt_across_chunks_gives_the_bits_of_single_tokens(form: str, first: int) -> None:
    prompt = Case(6, 2, 20, first=first, tokens=40, form=form)
    together = prompt.computed(37)
    for t in (0, 1, 15, 16, 19, 20, 21, 36):
        np.testing.assert_array_equal(prompt.alone(t).computed_in_chunks()[1][0], together[t])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "at", [(0, 0), (3 * CHUNK, 5), (CHUNK - 1, CHUNK, 2 * CHUNK + 9, 0, 700), (40,) * 9]
)
def test_sequences_together_give_the_bits_of_each_alone(form: str, at: tuple[int, ...]) -> None:
    batch = Case(6, 2, 20, at=at, form=form, context=4 * CHUNK)
    for count in {1, len(at) - 1, len(at)}:
        partials, together = batch.computed_in_chunks(count)
        for t in range(count):
            alone = batch.alone(t)
            np.testing.assert_array_equal(alone.computed_in_chunks()[1][0], together[t])
            close(together[t], alone.expected()[0], form)
        assert np.isnan(together[count:]).all()
    meaning = OPS["attend"].meaning(*batch.operands, **batch.attrs)
    close(partials, meaning, form, atol=1e-5)
    merged = OPS["combine"].meaning(meaning, batch.pos, **batch.combining)
    close(together, merged, form)


@pytest.mark.parametrize(
    ("cache", "pages", "wrong"),
    [
        ((1, 1, 128, 16), (1, 2), "a page must hold 256 positions"),
        ((1, 1, 24, 16), (1, 1), "multiple of 16"),
        ((1, 256, 16), (1, 1), "a cache must be"),
        ((1, 1, 256, 16), (2, 1), "the page table must be"),
    ],
)
def test_operands_that_do_not_fit(
    cache: tuple[int, ...], pages: tuple[int, ...], wrong: str
) -> None:
    q, stored = tensor("f32", 1, 16), tensor("f16", *cache)
    types = (q, stored, stored, tensor("i32", 1), tensor("i32", *pages))
    with pytest.raises(OpTypeError, match=wrong):
        infer("attend", types, {"heads": 1, "scale": 1.0, "softcap": 0.0, "window": 0})


def test_attend_divides_any_work_over_its_rows() -> None:
    """More rows than work, less work than rows: every piece is done once (NaN were it not)."""
    for first in (0, 5 * CHUNK, 11 * CHUNK + 3):
        partials, y = Case(2, 2, 2, first=first, context=16 * CHUNK).computed_in_chunks()
        written = np.isfinite(partials.reshape(2, 16, 4)).all(-1)
        assert (written == (np.arange(16) * CHUNK <= first)).all()
        assert np.isfinite(y).all()


FEATURES = {
    "window": {"window": 20},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "all": {"window": 33, "softcap": 5.0, "sinks": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("first", [0, 15, 19, 20, 40, CHUNK - 1, CHUNK + 5, CHUNK + 40])
def test_features_mean_what_numpy_says(form: str, feature: str, first: int) -> None:
    """Also in chunks, of which those before the window are not written."""
    case = Case(6, 2, 20, first=first, form=form, context=3 * CHUNK, **FEATURES[feature])
    check(case, 1, form)
    partials, y = case.computed_in_chunks()
    np.testing.assert_array_equal(y, case.computed(1))
    meaning = OPS["attend"].meaning(*case.operands, **case.attrs)
    close(partials, meaning, form, atol=1e-5)
    merged = OPS["combine"].meaning(meaning, case.pos, *case.sinks, **case.combining)
    np.testing.assert_allclose(merged, case.expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["f16", "i8"])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
@pytest.mark.parametrize("first", [0, 14, CHUNK - 20, 2 * CHUNK - 3])
def test_windows_in_a_prompt_give_the_bits_of_single_tokens(
    form: str, window: int, first: int
) -> None:
    """Tokens of a tile begin to see in different lanes, blocks and chunks."""
    prompt = Case(6, 2, 20, first=first, tokens=40, window=window, sinks=True, form=form)
    together = prompt.computed(37)
    close(together[:37], prompt.expected()[:37], form)
    for t in (0, 1, 15, 16, 19, 20, 21, 36):
        np.testing.assert_array_equal(prompt.alone(t).computed_in_chunks()[1][0], together[t])


def test_windows_of_sequences_together() -> None:
    at = (CHUNK - 1, CHUNK, 2 * CHUNK + 9, 0, 700)
    batch = Case(6, 2, 20, at=at, context=4 * CHUNK, window=CHUNK + 30, softcap=4.0)
    _, together = batch.computed_in_chunks(len(at))
    for t in range(len(at)):
        alone = batch.alone(t)
        np.testing.assert_array_equal(alone.computed_in_chunks()[1][0], together[t])
        close(together[t], alone.expected()[0])


def test_a_window_that_holds_everything_changes_no_bit() -> None:
    plain, wide = (Case(6, 2, 20, first=2 * CHUNK + 7, window=w) for w in (0, 3 * CHUNK))
    np.testing.assert_array_equal(plain.computed_in_chunks()[1], wide.computed_in_chunks()[1])


def test_a_sink_that_outweighs_everything_leaves_nothing() -> None:
    case = Case(2, 1, 16, first=30, sinks=True)
    case.sinks[0][:] = 500, -500
    y = case.computed(1).reshape(2, 16)
    np.testing.assert_allclose(y[0], 0, atol=1e-30)
    np.testing.assert_allclose(y[1], case.expected().reshape(2, 16)[1], rtol=1e-5, atol=2e-6)
