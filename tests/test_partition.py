"""partition: tile sizes that fit the machine, and never cut a head."""

import pytest
from test_pipeline import llama

from hotloop.compiler import compile_graph
from hotloop.ir.program import Kernel
from hotloop.machine.machine import Machine


def layer(machine: Machine) -> Kernel:
    program = compile_graph(llama(), machine, "pipelined").program
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
