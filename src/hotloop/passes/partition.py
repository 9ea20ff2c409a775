"""partition: how many rows a tile holds.

Before      part tile 8 { %q = linear(%x, %w) : f32[1,576] }
After       part tile 64 { %q = linear(%x, %w) : f32[1,576] }
Requires    stages (fuse or pipeline)
Why         A tile should hold enough weights that claiming it costs little, and little enough that
            the threads finish a stage together. Tiles change no result: rows are independent.
"""

from dataclasses import replace
from math import lcm, prod

from hotloop.ir.graph import Op
from hotloop.ir.ops import GROUP, OPS
from hotloop.ir.program import Kernel, Part, Program, map_kernels
from hotloop.ir.types import TensorType
from hotloop.machine.machine import Machine

#: At least this many tiles for each thread, so that the threads come out even …
TILES_PER_THREAD = 4
#: … and in all, so that small teams share one size, and the code that is compiled for it.
TILES = 16
#: Rows of a weight come in pairs of groups, as wide vectors take them.
PAIR = 2 * GROUP
#: A prompt reads its weights once for all its tokens, so that a tile is much work whatever its
#: bytes: not more rows than pay.
MOST_PROMPT_ROWS = 128
#: Tokens of a prompt whose attention is one tile: they share the keys and values that they read.
PROMPT_TOKENS = 16


def partition(program: Program, machine: Machine) -> Program:
    def change(kernel: Kernel) -> Kernel:
        stages = tuple(
            replace(
                stage,
                parts=tuple(
                    replace(part, tile=_rows(kernel, part, machine)) for part in stage.parts
                ),
            )
            for stage in kernel.stages
        )
        return Kernel.of(kernel.name, kernel.params, kernel.results, stages)

    return map_kernels(program, change)


def _rows(kernel: Kernel, part: Part, machine: Machine) -> int:
    """A multiple of the part's grain (its `tile` so far) near the machine's tile size."""
    grain = part.tile
    if OPS[part.ops[0].name].rows == "heads":
        return PROMPT_TOKENS
    if OPS[part.ops[0].name].rows != "features":
        return grain
    bytes_per_row = sum(_weight_bytes(kernel.types, op) for op in part.ops)
    if bytes_per_row == 0:
        return max(grain, 256 // grain * grain)
    rows = _feature_rows(kernel.types, part.ops[0])
    even = rows // max(TILES, machine.cores * TILES_PER_THREAD)
    grain = lcm(grain, PAIR)
    if _tokens(kernel.types, part.ops[0]) > 1:
        wanted = min(MOST_PROMPT_ROWS, even)
    else:
        wanted = min(machine.tile_bytes // bytes_per_row, even)
    return max(grain, wanted // grain * grain)


def _tokens(types: dict[str, TensorType], op: Op) -> int:
    """How many tokens the op computes at once."""
    return op.result.type.shape[0] if op.result else types[op.operands[1]].shape[0]


def _weight_bytes(types: dict[str, TensorType], op: Op) -> int:
    """Bytes of weight that one row of the op reads, of one expert where there are several."""
    if op.name not in ("linear", "expert_linear", "expert_mix"):
        return 0
    weight = types[op.operands[1]]
    return weight.nbytes // prod(weight.shape[:-1])


def _feature_rows(types: dict[str, TensorType], op: Op) -> int:
    return op.result.type.shape[1] if op.result else types[op.operands[1]].shape[1]
