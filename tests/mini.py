"""A model that fits on a page: two layers of a gated MLP, no attention.

The tests of the passes and ARCHITECTURE.md show it after each pass.
"""

from hotloop.ir.builder import GraphBuilder
from hotloop.ir.graph import Graph
from hotloop.ir.types import tensor


def mini_graph(layers: int = 2, width: int = 32, rows: int = 64, vocab: int = 96) -> Graph:
    """One decode step: embed, `layers` times (norm, gate, up, swiglu, down, add), head, sample."""
    g = GraphBuilder("mini")
    token, pos = g.input("token", tensor("i32", 1)), g.input("pos", tensor("i32", 1))
    table = g.weight("embd", tensor("q4_0", vocab, width))
    x = g.op("embed", token, table, to="x")
    for i in range(layers):
        norm = g.weight(f"blk.{i}.norm", tensor("f32", width))
        gate, up = (g.weight(f"blk.{i}.{n}", tensor("q4_0", rows, width)) for n in ("gate", "up"))
        down = g.weight(f"blk.{i}.down", tensor("q4_0", width, rows))
        with g.scope(f"blk.{i}"):
            h = g.op("rms_norm", x, norm, to="h", eps=1e-5)
            act = g.op("swiglu", g.linear(h, gate, "g"), g.linear(h, up, "u"), to="act")
            x = g.op("add", x, g.linear(act, down, "d"), to="y")
    logits = g.linear(x, table, "logits")
    ring, control = g.state("ring", tensor("i32", 1, 17)), g.state("control", tensor("control", 1))
    following = g.op("sample", logits, ring, pos, control, to="next")
    done = g.op("emit", following, ring, pos, control, to="done")
    advanced = g.op("advance", pos, to="pos.next")
    return g.build((logits, following, done), ((following, token), (advanced, pos)), until=done)
