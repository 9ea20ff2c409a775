"""Stacks of layers that differ, as graphs: what loops are made of.

A stack is a word, a letter for each layer: "dmmm" is a dense layer and three mixtures of experts.

    d   gated feed-forward, q4_0                        w   the same, twice as wide
    q   the same, but its down matrix in q8_0           r   the same, another eps
    m   a mixture of four experts, two for a token      n   no norm
"""

import numpy as np
from weights import real_weight

from hotloop.backends.cpu.executable import Executable, SequenceState, Weights
from hotloop.backends.cpu.team import Team
from hotloop.compiler import Compiled, compile_graph
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Graph
from hotloop.ir.ops import Array
from hotloop.ir.types import tensor
from hotloop.machine.machine import Machine

WIDTH, FFN, EXPERTS, SLOTS = 64, 96, 4, 2
RUNGS = ("ops", "fused", "looped", "pipelined")


def stack(word: str, tokens: int = 1, activations: str = "q8") -> Graph:
    """From %x to %y through the layers of `word`."""
    g = GraphBuilder(word, activations)
    x = g.input("x", tensor("f32", tokens, WIDTH))
    for i, kind in enumerate(word):
        with g.scope(f"blk.{i}"):
            x = _layer(g, f"blk.{i}", kind, x)
    return g.build((x,))


def _layer(g: GraphBuilder, prefix: str, kind: str, x: str) -> str:
    def weight(name: str, *shape: int, format: str = "q4_0") -> str:
        return g.weight(f"{prefix}.{name}", tensor(format, *shape))

    h = x
    if kind != "n":
        eps = 1e-3 if kind == "r" else 1e-5
        h = g.op("rms_norm", x, weight("norm", WIDTH, format="f32"), to="h", eps=eps)
    if kind == "m":
        return g.op("add", x, _experts(g, prefix, h), to="y")
    wide = 2 * FFN if kind == "w" else FFN
    gate, up = (g.linear(h, weight(name, wide, WIDTH), to=name) for name in ("gate", "up"))
    act = g.op("swiglu", gate, up, to="act")
    down = weight("down", WIDTH, wide, format="q8_0" if kind == "q" else "q4_0")
    return g.op("add", x, g.linear(act, down, to="down"), to="y")


def _experts(g: GraphBuilder, prefix: str, h: str) -> str:
    def weight(name: str, *shape: int) -> str:
        return g.weight(f"{prefix}.{name}", tensor("q4_0", *shape))

    router = g.weight(f"{prefix}.router", tensor("f32", EXPERTS, WIDTH))
    ids, weights = g.route(g.linear(h, router, to="logits"), SLOTS)
    gate, up = (
        g.expert_linear(h, weight(name, EXPERTS, FFN, WIDTH), ids, to=name)
        for name in ("gate", "up")
    )
    act = g.op("swiglu", gate, up, to="act")
    return g.expert_mix(act, weight("down", EXPERTS, WIDTH, FFN), ids, weights, to="down")


def data(graph: Graph) -> dict[str, Array]:
    """The file's bytes of every weight."""
    return {weight.name: real_weight(weight.type, i) for i, weight in enumerate(graph.weights)}


def values(graph: Graph) -> dict[str, Array]:
    """What the interpreter takes: the weights' meaning, and an input."""
    stored = data(graph)
    found = {w.name: dequantise(stored[w.name], w.type) for w in graph.weights}
    for value in graph.inputs:
        random = np.random.default_rng(7)
        found[value.name] = random.standard_normal(value.type.shape).astype(np.float32)
    return found


def compiled(graph: Graph, rung: str, cores: int = 2) -> Compiled:
    return compile_graph(graph, Machine("test", cores), rung)


def run(
    graph: Graph, rung: str, threads: int = 2, count: int | None = None, x: Array | None = None
) -> Array:
    """The output of the machine code, for the first `count` tokens of `x`."""
    stored = data(graph)
    team = Team(threads)
    weights = Weights(graph).fill(stored.__getitem__, 1)
    program = compiled(graph, rung, threads).program
    executable = Executable(program, weights, SequenceState(graph), team)
    (given,) = graph.inputs
    executable.view(given.name)[...] = values(graph)[given.name] if x is None else x
    count = given.type.shape[0] if count is None else count
    executable.run(count)
    (name,) = graph.outputs
    found = executable.view(name)[:count].copy()
    team.close()
    return found
