"""emit and advance: what a launch publishes, and when it ends."""

import numpy as np
import pytest
from jit import aligned, buffer_of, tile_function

from hotloop.ir.ops import OPS, infer
from hotloop.ir.types import CONTROL, tensor
from hotloop.kernels.emit import CANCELLED, LENGTH, STOP_TOKEN
from hotloop.kernels.tile import OpSpec

CAPACITY = 16
ONE = tensor("i32", 1)
EMIT = OpSpec("emit", (ONE, tensor("i32", 1, CAPACITY), ONE, tensor("control", 1)), ONE)


def control_block(**fields: object) -> np.ndarray:
    control = np.zeros(1, CONTROL)
    control["last_pos"] = CAPACITY - 1
    control["stop_ids"] = 7
    for name, value in fields.items():
        control[name] = value
    return control


def emitted(token: int, pos: int, control: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """The result (0 before), the ring and the control block after emit; both also by meaning."""
    ring = np.arange(100, 100 + CAPACITY, dtype=np.int32)[None]
    tokens, at = np.array([token], np.int32), np.array([pos], np.int32)
    buffers = [buffer_of(a) for a in (tokens, ring, at, control)]
    result = aligned(64, fill=0)
    tile_function(EMIT)(buffers, result, 0, 1, 1)
    expected = OPS["emit"].meaning(tokens, ring, at, control)
    np.testing.assert_array_equal(buffers[1].view(np.int32), ring[0])
    np.testing.assert_array_equal(buffers[3].view(CONTROL), control)
    np.testing.assert_array_equal(result.view(np.int32)[:1], expected)
    return int(expected[0]), ring[0], control


def test_a_token_in_the_middle_goes_on() -> None:
    ended, ring, control = emitted(5, 3, control_block())
    assert (ended, ring[4], control["published"][0], control["finish"][0]) == (0, 5, 5, 0)


@pytest.mark.parametrize(
    ("pos", "fields", "reason"),
    [
        (CAPACITY - 2, {}, LENGTH),
        (9, {"last_pos": 4}, LENGTH),
        (3, {"stop_count": 1}, STOP_TOKEN),
        (3, {"stop_count": 32, "stop_ids": [0] * 31 + [7]}, STOP_TOKEN),
        (3, {"cancel": 1}, CANCELLED),
        (CAPACITY - 2, {"stop_count": 1, "cancel": 1}, STOP_TOKEN),
        (CAPACITY - 2, {"cancel": 1}, LENGTH),
    ],
)
def test_it_ends_and_says_why(pos: int, fields: dict, reason: int) -> None:
    ended, _, control = emitted(7, pos, control_block(**fields))
    assert (ended, control["finish"][0], control["published"][0]) == (1, reason, pos + 2)


@pytest.mark.parametrize("count", [0, 31, 1000])
def test_only_valid_stop_ids_count(count: int) -> None:
    ids = [0] * 31 + [7]
    ended, _, _ = emitted(7, 3, control_block(stop_count=count, stop_ids=ids))
    assert ended == (count > 31)


def test_where_it_goes_on_the_result_is_left_alone() -> None:
    control = control_block()
    buffers = [buffer_of(a) for a in (np.int32([5]), np.zeros(CAPACITY, np.int32), np.int32([3]))]
    result = aligned(64, fill=0x55)
    tile_function(EMIT)([*buffers, buffer_of(control)], result, 0, 1, 1)
    assert (result == 0x55).all()


def test_advance_moves_one_position_on() -> None:
    result = aligned(64)
    tile_function(OpSpec("advance", (ONE,), ONE))([buffer_of(np.int32([41]))], result, 0, 1, 1)
    assert result.view(np.int32)[0] == 42


def test_each_sequence_gets_its_own_token_and_end() -> None:
    rows, count = 5, 4
    control = np.concatenate([control_block(), control_block(stop_count=1), *[control_block()] * 3])
    control["last_pos"][2] = 4
    ring = np.zeros((rows, CAPACITY), np.int32)
    tokens = np.array([5, 7, 9, 7, 1], np.int32)
    at = np.array([3, 1, 3, 0, 2], np.int32)
    types = (
        tensor("i32", rows),
        tensor("i32", rows, CAPACITY),
        tensor("i32", rows),
        tensor("control", rows),
    )
    spec = OpSpec("emit", types, infer("emit", types, {}))
    buffers = [buffer_of(a) for a in (tokens, ring, at, control)]
    result = aligned(64, fill=0)
    tile_function(spec)(buffers, result, 0, 1, count)
    expected = OPS["emit"].meaning(tokens[:count], ring[:count], at[:count], control[:count])
    np.testing.assert_array_equal(buffers[1].view(np.int32).reshape(ring.shape), ring)
    np.testing.assert_array_equal(buffers[3].view(CONTROL), control)
    assert result.view(np.int32)[0] == expected[0] == 1
    assert control["finish"].tolist() == [0, STOP_TOKEN, LENGTH, 0, 0]
    assert control["published"].tolist() == [5, 3, 5, 2, 0]
