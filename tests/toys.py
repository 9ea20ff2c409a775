"""A two-layer llama-like decode step, as a graph and as the programs of the ladder, in IR text.

Hidden size 64, 2 heads of 32 over 1 key-value head, feed-forward 96, 40 tokens, context 16. The
programs differ in fusion, loops and synchronisation only, so all must compute the same.
"""

from collections.abc import Callable, Mapping

import numpy as np

from hotloop.ir.graph import Graph, Op, Value
from hotloop.ir.ops import OPS, Array
from hotloop.ir.parse import parse_graph, parse_program
from hotloop.ir.program import ENTRY, Call, Kernel, Part, Program, Stage
from hotloop.ir.types import CONTROL

DECLARATIONS = """
  input %token : i32[1]
  input %pos : i32[1]
  input %pages : i32[1,1]
  weight %token_embd.weight : q8_0[40,64]
  weight %rope : f32[16,32]
  weight %blk.{0..1}.attn_norm.weight : f32[64],
         %blk.{0..1}.attn_q.weight : q4_1[64,64],
         %blk.{0..1}.attn_k.weight : q4_1[32,64],
         %blk.{0..1}.attn_v.weight : q4_1[32,64],
         %blk.{0..1}.attn_output.weight : q4_1[64,64],
         %blk.{0..1}.ffn_norm.weight : f32[64],
         %blk.{0..1}.ffn_gate.weight : q4_1[96,64],
         %blk.{0..1}.ffn_up.weight : q4_1[96,64],
         %blk.{0..1}.ffn_down.weight : q4_1[64,96]
  weight %output_norm.weight : f32[64]
  state %blk.{0..1}.keys : f16[1,1,16,32],
        %blk.{0..1}.values : f16[1,1,16,32]
  state %ring : i32[1,16]
  state %control : control[1]
"""

RESULTS = """
  output %next, %next_pos, %done, %logits
  feedback %next -> %token
  feedback %next_pos -> %pos
  until %done
"""

_LAYER_OPS = """
  %xn.L = rms_norm(%x.L, %blk.L.attn_norm.weight) {eps=1e-05} : f32[1,64]
  %xq.L = quantise(%xn.L) : q8[1,64]
  %q.L = linear(%xq.L, %blk.L.attn_q.weight) : f32[1,64]
  %k.L = linear(%xq.L, %blk.L.attn_k.weight) : f32[1,32]
  %v.L = linear(%xq.L, %blk.L.attn_v.weight) : f32[1,32]
  %qr.L = rope(%q.L, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,64]
  %kr.L = rope(%k.L, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,32]
  store_keys(%blk.L.keys, %kr.L, %pos, %pages) {head_dim=32}
  store_values(%blk.L.values, %v.L, %pos, %pages) {head_dim=32}
  %a.L = attention(%qr.L, %blk.L.keys, %blk.L.values, %pos, %pages)
      {heads=2, scale=0.25, softcap=0.0, window=0} : f32[1,64]
  %aq.L = quantise(%a.L) : q8[1,64]
  %o.L = linear(%aq.L, %blk.L.attn_output.weight) : f32[1,64]
  %h.L = add(%x.L, %o.L) : f32[1,64]
  %hn.L = rms_norm(%h.L, %blk.L.ffn_norm.weight) {eps=1e-05} : f32[1,64]
  %hq.L = quantise(%hn.L) : q8[1,64]
  %gate.L = linear(%hq.L, %blk.L.ffn_gate.weight) : f32[1,96]
  %up.L = linear(%hq.L, %blk.L.ffn_up.weight) : f32[1,96]
  %s.L = swiglu(%gate.L, %up.L) : f32[1,96]
  %sq.L = quantise(%s.L) : q8[1,96]
  %d.L = linear(%sq.L, %blk.L.ffn_down.weight) : f32[1,64]
  %x.NEXT = add(%h.L, %d.L) : f32[1,64]
"""

_HEAD_OPS = """
  %xn = rms_norm(%x.2, %output_norm.weight) {eps=1e-05} : f32[1,64]
  %xq = quantise(%xn) : q8[1,64]
  %logits = linear(%xq, %token_embd.weight) : f32[1,40]
  %next = sample(%logits, %ring, %pos, %control) : i32[1]
  %done = emit(%next, %ring, %pos, %control) : i32[1]
  %next_pos = advance(%pos) : i32[1]
"""

GRAPH = (
    "graph @toy {"
    + DECLARATIONS
    + "  %x.0 = embed(%token, %token_embd.weight) : f32[1,64]"
    + "".join(_LAYER_OPS.replace("NEXT", str(i + 1)).replace(".L", f".{i}") for i in range(2))
    + _HEAD_OPS
    + RESULTS
    + "}\n"
)

_EMBED = """
  kernel @embed(%token : i32[1], %table : q8_0[40,64]) -> (%x) {
    stage %s0 after %entry {
      part tile 1 {
        %x = embed(%token, %table) : f32[1,64]
      }
    }
  }
"""

_LAYER_HEAD = """
  kernel @layer(%x : f32[1,64], %attn_norm : f32[64], %attn_q : q4_1[64,64], %attn_k : q4_1[32,64],
      %attn_v : q4_1[32,64], %pos : i32[1], %pages : i32[1,1], %rope : f32[16,32],
      %keys : f16[1,1,16,32], %values : f16[1,1,16,32], %attn_output : q4_1[64,64],
      %ffn_norm : f32[64], %ffn_gate : q4_1[96,64], %ffn_up : q4_1[96,64],
      %ffn_down : q4_1[64,96]) -> (%y) {
"""

#: A stage for each op, a barrier before each stage.
_LAYER_BARRIERS = (
    _LAYER_HEAD
    + """
    stage %s0 barrier { part tile 1 {
      %xn = rms_norm(%x, %attn_norm) {eps=1e-05} : f32[1,64] } }
    stage %s1 barrier { part tile 1 { %xq = quantise(%xn) : q8[1,64] } }
    stage %s2 barrier { part tile 16 { %q = linear(%xq, %attn_q) : f32[1,64] } }
    stage %s3 barrier { part tile 16 { %k = linear(%xq, %attn_k) : f32[1,32] } }
    stage %s4 barrier { part tile 16 { %v = linear(%xq, %attn_v) : f32[1,32] } }
    stage %s5 barrier { part tile 32 {
      %qr = rope(%q, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,64] } }
    stage %s6 barrier { part tile 32 {
      %kr = rope(%k, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,32] } }
    stage %s7 barrier { part tile 32 { store_keys(%keys, %kr, %pos, %pages) {head_dim=32} } }
    stage %s8 barrier { part tile 32 { store_values(%values, %v, %pos, %pages) {head_dim=32} } }
    stage %s9 barrier { part tile 1 {
      %a = attention(%qr, %keys, %values, %pos, %pages)
          {heads=2, scale=0.25, softcap=0.0, window=0} : f32[1,64] } }
    stage %s10 barrier { part tile 1 { %aq = quantise(%a) : q8[1,64] } }
    stage %s11 barrier { part tile 16 { %o = linear(%aq, %attn_output) : f32[1,64] } }
    stage %s12 barrier { part tile 16 { %h = add(%x, %o) : f32[1,64] } }
    stage %s13 barrier { part tile 1 {
      %hn = rms_norm(%h, %ffn_norm) {eps=1e-05} : f32[1,64] } }
    stage %s14 barrier { part tile 1 { %hq = quantise(%hn) : q8[1,64] } }
    stage %s15 barrier { part tile 16 { %gate = linear(%hq, %ffn_gate) : f32[1,96] } }
    stage %s16 barrier { part tile 16 { %up = linear(%hq, %ffn_up) : f32[1,96] } }
    stage %s17 barrier { part tile 16 { %s = swiglu(%gate, %up) : f32[1,96] } }
    stage %s18 barrier { part tile 1 { %sq = quantise(%s) : q8[1,96] } }
    stage %s19 barrier { part tile 16 { %d = linear(%sq, %ffn_down) : f32[1,64] } }
    stage %s20 barrier { part tile 16 { %y = add(%h, %d) : f32[1,64] } }
  }
"""
)

_LAYER_FLAGS = (
    _LAYER_HEAD
    + """
    stage %s0 after %entry prefetch {
      each %xn = rms_norm(%x, %attn_norm) {eps=1e-05} : f32[1,64]
      each %xq = quantise(%xn) : q8[1,64]
      part tile 32 {
        %q = linear(%xq, %attn_q) : f32[1,64]
        %qr = rope(%q, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,64]
      }
      part tile 32 {
        %k = linear(%xq, %attn_k) : f32[1,32]
        %kr = rope(%k, %pos, %rope) {first_row=0, head_dim=32, pairing="interleaved"} : f32[1,32]
        store_keys(%keys, %kr, %pos, %pages) {head_dim=32}
      }
      part tile 32 {
        %v = linear(%xq, %attn_v) : f32[1,32]
        store_values(%values, %v, %pos, %pages) {head_dim=32}
      }
    }
    stage %s1 after %s0 {
      part tile 1 {
        %a = attention(%qr, %keys, %values, %pos, %pages)
            {heads=2, scale=0.25, softcap=0.0, window=0} : f32[1,64]
      }
    }
    stage %s2 after %s1 prefetch {
      each %aq = quantise(%a) : q8[1,64]
      part tile 8 {
        %o = linear(%aq, %attn_output) : f32[1,64]
        %h = add(%x, %o) : f32[1,64]
      }
    }
    stage %s3 after %s2 prefetch {
      each %hn = rms_norm(%h, %ffn_norm) {eps=1e-05} : f32[1,64]
      each %hq = quantise(%hn) : q8[1,64]
      part tile 16 {
        %gate = linear(%hq, %ffn_gate) : f32[1,96]
        %up = linear(%hq, %ffn_up) : f32[1,96]
        %s = swiglu(%gate, %up) : f32[1,96]
      }
    }
    stage %s4 after %s3 prefetch {
      each %sq = quantise(%s) : q8[1,96]
      part tile 8 {
        %d = linear(%sq, %ffn_down) : f32[1,64]
        %y = add(%h, %d) : f32[1,64]
      }
    }
  }
"""
)

_HEAD = """
  kernel @head(%x : f32[1,64], %norm : f32[64], %table : q8_0[40,64]) -> (%logits) {
    stage %s0 after %entry prefetch {
      each %xn = rms_norm(%x, %norm) {eps=1e-05} : f32[1,64]
      each %xq = quantise(%xn) : q8[1,64]
      part tile 16 {
        %logits = linear(%xq, %table) : f32[1,40]
      }
    }
  }
  kernel @sample(%logits : f32[1,40], %ring : i32[1,16], %pos : i32[1], %control : control[1])
      -> (%next, %done, %next_pos) {
    stage %s0 after %entry {
      part tile 1 {
        %next = sample(%logits, %ring, %pos, %control) : i32[1]
        %done = emit(%next, %ring, %pos, %control) : i32[1]
        %next_pos = advance(%pos) : i32[1]
      }
    }
  }
"""

_LAYER_CALL = """
    %y = call @layer(%x, %blk.L.attn_norm.weight, %blk.L.attn_q.weight, %blk.L.attn_k.weight,
        %blk.L.attn_v.weight, %pos, %pages, %rope, %blk.L.keys, %blk.L.values,
        %blk.L.attn_output.weight, %blk.L.ffn_norm.weight, %blk.L.ffn_gate.weight,
        %blk.L.ffn_up.weight, %blk.L.ffn_down.weight)
"""

_LAYER_LOOP = """
  loop %i < 2 {
    carried %x = %x.0 next %y buffers 1
    stacked %attn_norm.weight = %blk.{0..1}.attn_norm.weight
    stacked %attn_q.weight = %blk.{0..1}.attn_q.weight
    stacked %attn_k.weight = %blk.{0..1}.attn_k.weight
    stacked %attn_v.weight = %blk.{0..1}.attn_v.weight
    invariant %pos = %pos
    invariant %pages = %pages
    invariant %rope = %rope
    state %keys = %blk.{0..1}.keys
    state %values = %blk.{0..1}.values
    stacked %attn_output.weight = %blk.{0..1}.attn_output.weight
    stacked %ffn_norm.weight = %blk.{0..1}.ffn_norm.weight
    stacked %ffn_gate.weight = %blk.{0..1}.ffn_gate.weight
    stacked %ffn_up.weight = %blk.{0..1}.ffn_up.weight
    stacked %ffn_down.weight = %blk.{0..1}.ffn_down.weight
""" + (
    _LAYER_CALL.replace("blk.L.", "")
    + """
    yield %y -> %x.2
  }
"""
)

FIRST = "  %x.0 = call @embed(%token, %token_embd.weight)\n"
_LAST = """
  %logits = call @head(%x.2, %output_norm.weight, %token_embd.weight)
  %next, %done, %next_pos = call @sample(%logits, %ring, %pos, %control)
"""

_FUSED_BODY = FIRST + "".join(
    _LAYER_CALL.replace("%y =", f"%x.{i + 1} =")
    .replace("(%x,", f"(%x.{i},")
    .replace(".L.", f".{i}.")
    for i in range(2)
)

FUSED = (
    "program @toy launch=item {"
    + DECLARATIONS
    + _EMBED
    + _LAYER_BARRIERS
    + _HEAD
    + _FUSED_BODY
    + _LAST
    + RESULTS
    + "}\n"
)

#: The calls of `FUSED` in one launch, with flags: what looping the layers must be equal to.
UNROLLED = FUSED.replace("launch=item", "launch=program").replace(_LAYER_BARRIERS, _LAYER_FLAGS)

LOOPED = FUSED.replace(_FUSED_BODY, FIRST + _LAYER_LOOP).replace("launch=item", "launch=program")

PIPELINED = LOOPED.replace(_LAYER_BARRIERS, _LAYER_FLAGS)

TOKENS = (
    "program @toy launch=program {"
    + DECLARATIONS
    + _EMBED
    + _LAYER_FLAGS
    + _HEAD
    + """
  loop %t until %done {
    carried %token = %token next %next buffers 1
    carried %pos = %pos next %next_pos buffers 2
    invariant %pages = %pages
    invariant %token_embd.weight = %token_embd.weight
    invariant %rope = %rope
    invariant %blk.{0..1}.attn_norm.weight = %blk.{0..1}.attn_norm.weight,
              %blk.{0..1}.attn_q.weight = %blk.{0..1}.attn_q.weight,
              %blk.{0..1}.attn_k.weight = %blk.{0..1}.attn_k.weight,
              %blk.{0..1}.attn_v.weight = %blk.{0..1}.attn_v.weight,
              %blk.{0..1}.attn_output.weight = %blk.{0..1}.attn_output.weight,
              %blk.{0..1}.ffn_norm.weight = %blk.{0..1}.ffn_norm.weight,
              %blk.{0..1}.ffn_gate.weight = %blk.{0..1}.ffn_gate.weight,
              %blk.{0..1}.ffn_up.weight = %blk.{0..1}.ffn_up.weight,
              %blk.{0..1}.ffn_down.weight = %blk.{0..1}.ffn_down.weight
    invariant %output_norm.weight = %output_norm.weight
    state %blk.{0..1}.keys = %blk.{0..1}.keys,
          %blk.{0..1}.values = %blk.{0..1}.values
    state %ring = %ring
    state %control = %control
"""
    + FIRST
    + _LAYER_LOOP
    + _LAST
    + """
    yield %next -> %next
    yield %next_pos -> %next_pos
    yield %done -> %done
    yield %logits -> %logits
  }
  output %next, %next_pos, %done, %logits
}
"""
)

#: Four norms in a row, each added to its input.
SMALL = """
program @small launch=program {
  input %x : f32[1,64]
  weight %w.{0..3} : f32[64]
  kernel @k(%x : f32[1,64], %w : f32[64]) -> (%y) {
    stage %s0 after %entry {
      part tile 1 { %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,64] }
    }
    stage %s1 after %s0 {
      part tile 8 { %y = add(%x, %n) : f32[1,64] }
    }
  }
  loop %i < 4 {
    carried %x = %x next %y buffers 1
    stacked %w = %w.{0..3}
    %y = call @k(%x, %w)
    yield %y -> %out
  }
  output %out
}
"""

#: The body is one stage that reads all of its input, so the two values alternate.
ALTERNATING = """
program @alternating launch=program {
  input %x : f32[1,32]
  weight %w.{0..2} : f32[32,32]
  kernel @k(%x : f32[1,32], %w : f32[32,32]) -> (%y) {
    stage %s0 after %entry {
      part tile 8 { %y = linear(%x, %w) : f32[1,32] }
    }
  }
  loop %i < 3 {
    carried %x = %x next %y buffers 2
    stacked %w = %w.{0..2}
    %y = call @k(%x, %w)
    yield %y -> %out
  }
  output %out
}
"""

#: A period of two layers of one kind, in an inner loop, and one of another kind.
PERIOD = """
program @period launch=program {
  input %x : f32[1,32]
  weight %a.{0..1} : f32[32,32]
  weight %b.{0..2} : f32[32]
  kernel @local(%x : f32[1,32], %w : f32[32,32]) -> (%y) {
    stage %s0 after %entry {
      part tile 8 {
        %l = linear(%x, %w) : f32[1,32]
        %y = add(%x, %l) : f32[1,32]
      }
    }
  }
  kernel @global(%x : f32[1,32], %w : f32[32]) -> (%y) {
    stage %s0 after %entry {
      part tile 1 { %y = rms_norm(%x, %w) {eps=1e-05} : f32[1,32] }
    }
  }
  loop %j < 3 {
    carried %x = %x next %y buffers 2
    invariant %a.{0..1} = %a.{0..1}
    stacked %b = %b.{0..2}
    loop %i < 2 {
      carried %x = %x next %y buffers 2
      stacked %a = %a.{0..1}
      %y = call @local(%x, %a)
      yield %y -> %z
    }
    %y = call @global(%z, %b)
    yield %y -> %out
  }
  output %out
}
"""

#: Three tokens at once; two stages that wait for the same one and for nothing else.
PROMPT = """
program @prompt launch=program {
  input %x : f32[3,32]
  weight %norm : f32[32]
  weight %a : q8_0[40,32]
  weight %b : q8_0[24,32]
  kernel @k(%x : f32[3,32], %norm : f32[32], %a : q8_0[40,32], %b : q8_0[24,32]) -> (%y, %z) {
    stage %s0 after %entry {
      part tile 2 {
        %n = rms_norm(%x, %norm) {eps=1e-05} : f32[3,32]
        %q = quantise(%n) : q8[3,32]
      }
    }
    stage %s1 after %s0 prefetch { part tile 16 { %y = linear(%q, %a) : f32[3,40] } }
    stage %s2 after %s0 prefetch { part tile 16 { %z = linear(%q, %b) : f32[3,24] } }
  }
  %y, %z = call @k(%x, %norm, %a, %b)
  %y.2, %z.2 = call @k(%x, %norm, %a, %b)
  output %y.2, %z.2
}
"""

#: A stage that waits for nothing, which is legal where the program's items are launches.
LAUNCHES = """
program @launches launch=item {
  input %x : f32[1,64]
  weight %w : f32[64]
  kernel @k(%x : f32[1,64], %w : f32[64]) -> (%n, %m) {
    stage %s0 after %entry { part tile 1 { %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,64] } }
    stage %s1 { part tile 1 { %m = rms_norm(%x, %w) {eps=1.0} : f32[1,64] } }
  }
  %a, %b = call @k(%x, %w)
  %c, %d = call @k(%a, %w)
  output %c, %d
}
"""

#: Layers that differ in a scalar and in the format of a weight; one more stands outside the loop.
VARIED = """
program @varied launch=program {
  input %x : f32[1,32]
  weight %norm.{0..3} : f32[32]
  weight %w.0 : f32[32,32]
  weight %w.1 : q8_0[32,32]
  weight %w.2 : f32[32,32]
  weight %w.3 : q8_0[32,32]
  constant %eps.{0..1} : f32[] = 0.5
  constant %eps.{2..3} : f32[] = 2.0
  kernel @k(%x : f32[1,32], %norm : f32[32], %w : f32|q8_0[32,32], %eps : f32[]) -> (%y) {
    stage %s0 after %entry prefetch {
      each %n = rms_norm(%x, %norm) {eps=%eps} : f32[1,32]
      part tile 8 { %l = linear(%n, %w) : f32[1,32] }
    }
    stage %s1 after %s0 { part tile 8 { %y = add(%x, %l) : f32[1,32] } }
  }
  loop %i < 3 {
    carried %x = %x next %y buffers 1
    stacked %norm = %norm.{0..2}
    variant %w = %w.{0..2}
    stacked %eps = %eps.{0..2}
    %y = call @k(%x, %norm, %w, %eps)
    yield %y -> %z
  }
  %out = call @k(%z, %norm.3, %w.3, %eps.3)
  output %out
}
"""

#: What the ladder does not show.
OTHERS = {
    "varied": VARIED,
    "small": SMALL,
    "alternating": ALTERNATING,
    "period": PERIOD,
    "prompt": PROMPT,
    "launches": LAUNCHES,
}

PROGRAMS = {
    "fused": FUSED,
    "unrolled": UNROLLED,
    "looped": LOOPED,
    "pipelined": PIPELINED,
    "tokens": TOKENS,
}


def graph() -> Graph:
    return parse_graph(GRAPH)


def program(name: str) -> Program:
    """The toy step on a rung of the ladder, or one of `OTHERS`."""
    if name == "ops":
        return ops_program(graph())
    return parse_program({**PROGRAMS, **OTHERS}[name])


#: Every valid program there is here.
VALID = ("ops", *PROGRAMS, *OTHERS)


def ops_program(graph: Graph) -> Program:
    """Each op its own call."""
    body = []
    for op in graph.ops:
        distinct = tuple(dict.fromkeys(op.operands))
        short = {name: f"a{k}" for k, name in enumerate(distinct)}
        params = tuple(Value(short[name], graph.types[name]) for name in distinct)
        result = Value("y", op.result.type) if op.result else None
        grain = OPS[op.name].grain(dict(op.attrs))
        inner = Op(op.name, tuple(short[name] for name in op.operands), result, op.attrs)
        stage = Stage("s0", (ENTRY,), (), (Part((inner,), grain),))
        what = "_".join([op.name, *(f"{v.type.format}_{v.type.elements}" for v in params)])
        kernel = Kernel.of(what, params, ("y",) if result else (), (stage,))
        body.append(Call(kernel, distinct, (op.result.name,) if op.result else ()))
    return Program(
        graph.name,
        graph.inputs,
        graph.weights,
        graph.states,
        tuple(body),
        graph.outputs,
        graph.feedback,
        graph.until,
    )


def values(program: Program | Graph, seed: int = 0) -> dict[str, Array]:
    """Arrays for all that `program` declares: random numbers; token 3 at position 0."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for value in program.weights:
        scale = 1.0 if len(value.type.shape) == 1 else 2 * value.type.shape[-1] ** -0.5
        arrays[value.name] = (rng.standard_normal(value.type.shape) * scale).astype(np.float32)
    for value in program.states:
        arrays[value.name] = np.zeros(value.type.shape, value.type.format.numpy)
    for value in program.inputs:
        if value.type.format.name == "f32":
            arrays[value.name] = rng.standard_normal(value.type.shape).astype(np.float32)
        else:
            arrays[value.name] = np.zeros(value.type.shape, value.type.format.numpy)
    if "token" in arrays:
        arrays["token"][0] = arrays["ring"][0, 0] = 3
    if "control" in arrays:
        arrays["control"][:] = control()
    return arrays


def control(last_pos: int = 15) -> Array:
    """Greedy sampling that stops after the token for `last_pos`."""
    block = np.zeros(1, CONTROL)
    block["top_p"] = block["repeat_penalty"] = 1
    block["last_pos"] = last_pos
    return block


def generate(
    step: Callable[[dict[str, Array]], Mapping[str, Array]],
    program: Program | Graph,
    arrays: dict[str, Array],
) -> list[int]:
    """The tokens of step after step, outputs fed back to inputs, until it says stop."""
    tokens = []
    while True:
        outputs = step(arrays)
        tokens.append(int(outputs["next"][0]))
        if program.until and outputs[program.until][0]:
            return tokens
        for source, target in program.feedback:
            arrays[target] = outputs[source]
