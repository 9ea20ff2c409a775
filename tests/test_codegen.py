"""Code generation: its size, its targets, and what the models of the tests do not exercise."""

from dataclasses import replace

import numpy as np
import pytest
from mini import mini_graph
from test_pipeline import llama

from hotloop.backends.cpu import jit
from hotloop.backends.cpu.codegen import generate
from hotloop.backends.cpu.executable import Executable, SequenceState, Weights
from hotloop.backends.cpu.places import place_states, place_weights, place_work
from hotloop.backends.cpu.team import Team
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.ir.graph import Graph
from hotloop.ir.program import Program
from hotloop.ir.types import TensorType
from hotloop.lang import Target
from hotloop.lang.target import AARCH64, X86_64, host
from hotloop.machine.machine import Machine
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import ProgramError

MACHINE = Machine("two cores", cores=2)


def module_text(graph: Graph, program: Program, target: Target) -> str:
    weights, states = place_weights(graph), place_states(graph)
    return str(generate(program, weights, states, place_work(program), target))


@pytest.mark.parametrize("schedule", ["looped", "tokens"])
def test_code_does_not_grow_with_depth(schedule: str) -> None:
    """But for the numbers in it: the trip count, and the offsets of what follows the layers."""
    lines = []
    for layers in (20, 80):
        graph = mini_graph(layers)
        program = compile_graph(graph, MACHINE, schedule).program
        lines.append(module_text(graph, program, host()).count("\n"))
    assert lines[1] == lines[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rung_compiles_for_aarch64(schedule: str) -> None:
    graph = llama()
    program = compile_graph(graph, MACHINE, schedule).program
    assembly = jit.assembly(module_text(graph, program, AARCH64), AARCH64)
    assert "fmla" in assembly  # vectors, and fused multiply-add
    assert "ldar" in assembly or "ldapr" in assembly  # loads that acquire
    assert "fmaf" not in assembly  # no call for each multiply-add


def test_code_for_aarch64_uses_no_instructions_of_x86() -> None:
    graph = llama()
    program = compile_graph(graph, MACHINE, "tokens").program
    for target in (AARCH64, X86_64):
        assert "llvm.x86.avx" not in module_text(graph, program, target)


def random_weight(name: str, type: TensorType) -> np.ndarray:
    """Bytes of a weight: small float values, or quants with a scale of 2^-6."""
    rng = np.random.default_rng(sum(name.encode()))
    if not type.format.quantised:
        return (1 + rng.normal(0, 0.1, type.shape)).astype(np.float32).reshape(-1).view(np.uint8)
    blocks = rng.integers(0, 256, (type.nbytes // 18, 18), dtype=np.uint8)
    blocks[:, :2] = np.array([2**-6], np.float16).view(np.uint8)
    return blocks.reshape(-1)


def run_mini(program: Program, graph: Graph, n: int = 8) -> tuple[list[int], bytes]:
    """Tokens of a generation on the CPU backend, and the last logits."""
    team = Team(2)
    weights = Weights(graph).fill(lambda name: random_weight(name, graph.types[name]), 1)
    state = SequenceState(graph)
    executable = Executable(program, weights, state, team)
    control = state.view("control")
    Sampling().write(control)
    control[0]["last_pos"] = n
    executable.view("token")[0] = 5
    executable.view("pos")[0] = 0
    executable.run(until_done=True)
    team.close()
    return state.view("ring")[0, 1 : n + 1].tolist(), executable.view("logits").tobytes()


@pytest.mark.parametrize("layers", [2, 3])
def test_two_buffers_are_as_good_as_one(layers: int) -> None:
    """The memory pass leaves one buffer in every model here; alternating ones must work, too."""
    graph = mini_graph(layers)
    expected = run_mini(compile_graph(graph, MACHINE, "looped").program, graph)
    alternating, _ = loop(fuse(graph)[0])
    item = alternating.body[1]
    assert [arg.buffers for arg in item.args if arg.kind == "carried"] == [2]  # type: ignore[union-attr]
    assert run_mini(alternating, graph) == expected


def test_two_buffers_need_a_known_number_of_iterations() -> None:
    graph = mini_graph()
    program = compile_graph(graph, MACHINE, "tokens").program
    (item,) = program.body
    args = tuple(replace(a, buffers=2) if a.kind == "carried" else a for a in item.args)  # type: ignore[union-attr]
    with pytest.raises(ProgramError, match="give it one buffer"):
        place_work(replace(program, body=(replace(item, args=args),)))  # type: ignore[type-var]


def test_buffers_at_uneven_distances_are_found_by_a_table() -> None:
    graph = mini_graph(3)
    expected = run_mini(compile_graph(graph, MACHINE, "tokens").program, graph)
    # The weights of layer 1 move behind the others.
    order = sorted(graph.ops, key=lambda op: op.operands[-1].startswith("blk.1"))
    moved = place_weights(replace(graph, ops=tuple(order)))
    assert moved.offsets != place_weights(graph).offsets
    program = compile_graph(graph, MACHINE, "tokens").program
    text = str(generate(program, moved, place_states(graph), place_work(program), host()))
    assert "in.turn" in text
    assert "in.turn" not in module_text(graph, program, host())
    assert expected


def test_launches_that_follow_each_other_share_memory() -> None:
    """The ops rung has hundreds of values, of which a few live at any time."""
    graph = mini_graph(40)
    ops = place_work(compile_graph(graph, MACHINE, "ops").program)
    few = place_work(compile_graph(mini_graph(2), MACHINE, "ops").program)
    assert ops.nbytes == few.nbytes
