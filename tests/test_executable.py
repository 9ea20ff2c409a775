"""The CPU backend against the interpreter: every toy program gives the same values."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import toys

from hotloop.backends.cpu.executable import Executable, SequenceState, Weights
from hotloop.backends.cpu.team import Team
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Graph, Op
from hotloop.ir.interp import run_program
from hotloop.ir.program import Call, Item, Program
from hotloop.ir.types import TensorType
from hotloop.passes.memory import memory


def executed(body: tuple[Item, ...], names: Mapping[str, str]) -> Iterator[Op]:
    """The ops of every call, with the names that their operands have outside all loops."""
    for item in body:
        if isinstance(item, Call):
            outside = {
                param.name: names.get(arg, arg)
                for param, arg in zip(item.kernel.params, item.args, strict=True)
            }
            for op in item.kernel.ops:
                operands = tuple(outside.get(name, name) for name in op.operands)
                yield Op(op.name, operands, op.result, op.attrs)
            continue
        for k in range(item.trip or 1):
            inside = {
                arg.name: names.get(outer, outer)
                for arg in item.args
                for outer in [arg.outer[k if len(arg.outer) > 1 else 0]]
            }
            yield from executed(item.body, inside)


def as_graph(program: Program) -> Graph:
    """A graph with the program's declarations and uses, which is what weights are placed by."""
    ops = tuple(executed(program.body, {}))
    return Graph("toy", program.inputs, program.weights, program.states, ops, program.outputs)


def stored(type: TensorType, values: np.ndarray, seed: int) -> np.ndarray:
    """The file's bytes of a weight: its values, or random q8_0 blocks with a scale of 2^-8."""
    if type.format.name == "f32":
        return values.reshape(-1).view(np.uint8)
    assert type.format.name == "q8_0"
    data = np.random.default_rng(seed).integers(0, 256, (type.nbytes // 34, 34), dtype=np.uint8)
    data[:, :2] = np.array([2.0**-8], np.float16).view(np.uint8)
    return data.reshape(-1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(toys.OTHERS))
def test_toys_give_their_meaning(name: str, threads: int) -> None:
    check(toys.program(name), threads)


@pytest.mark.parametrize("name", sorted(toys.OTHERS))
def test_toys_keep_their_meaning_when_buffers_are_shared(name: str) -> None:
    check(memory(toys.program(name))[0], threads=2)


def check(program: Program, threads: int) -> None:
    values = toys.values(program)
    data = {}
    for i, weight in enumerate(program.weights):
        data[weight.name] = stored(weight.type, values[weight.name], i)
        values[weight.name] = dequantise(data[weight.name], weight.type)
    expected = run_program(program, values)
    graph, team = as_graph(program), Team(threads)
    weights = Weights(graph).fill(data.__getitem__, 1)
    executable = Executable(program, weights, SequenceState(graph), team)
    for value in program.inputs:
        executable.view(value.name)[...] = values[value.name]
    executable.run(count=program.inputs[0].type.shape[0])
    for output in program.outputs:
        found = executable.view(output)
        np.testing.assert_allclose(found, expected[output], rtol=1e-4, atol=1e-4)
    team.close()
