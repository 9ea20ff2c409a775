"""spread and narrow against their meanings, bit for bit."""

import numpy as np
import pytest
from jit import compute, from_rows, rows_of

from hotloop.ir.ops import OPS, OpTypeError, infer
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec


@pytest.mark.parametrize(("head_dim", "part"), [(4, 4), (12, 4), (20, 7), (96, 32)])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_they_mean_what_numpy_says(head_dim: int, part: int, tokens: int, count: int) -> None:
    random = np.random.default_rng(head_dim)
    x = random.normal(size=(tokens, 3 * head_dim)).astype(np.float32)
    common = random.normal(size=(tokens, part)).astype(np.float32)
    wide, short = tensor("f32", *x.shape), tensor("f32", tokens, part)

    spec = OpSpec("spread", (wide, short), wide, (("head_dim", head_dim),))
    y = from_rows(compute(spec, [rows_of(x), rows_of(common)], count, head_dim), *x.shape)
    expected = OPS["spread"].meaning(x, common, head_dim=head_dim)
    np.testing.assert_array_equal(y[:count], expected[:count])
    assert np.isnan(y[count:]).all()

    attrs = {"head_dim": head_dim, "keep": part}
    result = infer("narrow", [wide], attrs)
    spec = OpSpec("narrow", (wide,), result, tuple(attrs.items()))
    y = from_rows(compute(spec, [rows_of(x)], count, part), *result.shape)
    np.testing.assert_array_equal(y[:count], OPS["narrow"].meaning(x, **attrs)[:count])
    assert np.isnan(y[count:]).all()


def test_parts_must_fit_the_heads() -> None:
    x, common = tensor("f32", 1, 24), tensor("f32", 1, 9)
    with pytest.raises(OpTypeError, match="no part of heads of 8"):
        infer("spread", [x, common], {"head_dim": 8})
    with pytest.raises(OpTypeError, match="9 of heads of 8"):
        infer("narrow", [x], {"head_dim": 8, "keep": 9})
    with pytest.raises(OpTypeError, match="whole heads"):
        infer("spread", [x, common], {"head_dim": 10})
