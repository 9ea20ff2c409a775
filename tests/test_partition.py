"""partition: tile sizes that fit the machine, and never cut a head."""

import pytest
from test_pipeline import llama

from hotloop.compiler import compile_graph
from hotloop.ir.program import Kernel
from hotloop.machine.machine import Machine


def layer(machine: Machine, tokens: int = 1) -> Kernel:
    program = compile_graph(llama(tokens), machine, "pipelined").program
    return next(kernel for kernel in program.kernels if kernel.name == "layer")


@pytest.mark.parametrize("cores", [1, 2, 7, 64])
@pytest.mark.parametrize("tile_bytes", [1, 4096, 1 << 30])
def test_tiles_are_multiples_of_the_grain(cores: int, tile_bytes: int) -> None:
    for stage in layer(Machine("any", cores, tile_bytes)).stages:
        for part in stage.parts:
            heads = any(op.name in ("rope", "store_keys", "store_values") for op in part.ops)
            assert part.tile % (16 if heads else 1) == 0
            assert part.tile > 0


def test_bigger_tiles_on_fewer_cores() -> None:
    few, many = layer(Machine("few", 1)), layer(Machine("many", 16))
    tiles = [
        [part.tile for stage in kernel.stages for part in stage.parts] for kernel in (few, many)
    ]
    assert all(a >= b for a, b in zip(*tiles, strict=True))


def test_tokens_of_a_prompt_share_the_keys_they_read() -> None:
    parts = [part for stage in layer(Machine("any", 2), 64).stages for part in stage.parts]
    attention = next(part for part in parts if part.ops[0].name == "attention")
    assert attention.tile == 16
    assert 64 % attention.tile == 0  # so a tile is of one head
