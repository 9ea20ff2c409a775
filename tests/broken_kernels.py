"""Broken kernels: stages that cannot complete, values without a definition, tiles that collide."""

import toys
from broken import broken

from hotloop.ir.ops import OPS

_IDLE = "kernel @idle() -> () { }\n  kernel @k("

STAGES = [
    broken(
        "a kernel without stages",
        toys.SMALL,
        ("kernel @k(", _IDLE),
        ("output", "call @idle()\n  output"),
        problems=["@idle: has no stages"],
    ),
    broken(
        "two stages of one name",
        toys.SMALL,
        ("stage %s1 after %s0", "stage %s0 after %entry"),
        problems=["@k: two stages are named %s0"],
    ),
    broken(
        "a stage named entry",
        toys.SMALL,
        ("stage %s0 after %entry", "stage %entry"),
        ("after %s0", "barrier"),
        problems=["@k %entry: %entry stands for what precedes the call, and cannot name a stage"],
    ),
    broken(
        "a stage that waits for itself",
        toys.SMALL,
        ("after %s0", "after %s0, %s1"),
        problems=["@k %s1: waits for itself, so it never starts"],
    ),
    broken(
        "a stage that waits for a later one",
        toys.PIPELINED,
        ("stage %s2 after %s1", "stage %s2 after %s1, %s4"),
        problems=["@layer %s2: waits for %s4, which comes later, so it never starts"],
    ),
    broken(
        "a wait that nobody signals",
        toys.PIPELINED,
        ("after %s1", "after %s7"),
        problems=["@layer %s2: waits for %s7, which nobody signals"],
    ),
    broken(
        "a wait for a stage of another kernel",
        toys.SMALL,
        (
            "kernel @k(",
            (
                "kernel @other(%x : f32[1,64]) -> (%y) {\n"
                " stage %far after %entry { part tile 8 { %y = add(%x, %x) : f32[1,64] } } }\n"
                " kernel @k("
            ),
        ),
        ("%y = call @k(%x", "%z = call @other(%x)\n    %y = call @k(%z"),
        ("after %s0", "after %s0, %far"),
        problems=["@k %s1: waits for %far, which nobody signals"],
    ),
    broken(
        "a stage without parts",
        toys.SMALL,
        ("stage %s1", "stage %idle after %entry { } stage %s1"),
        problems=["@k %idle: has no parts, so there is nothing to complete"],
    ),
    broken(
        "a part without ops",
        toys.SMALL,
        ("part tile 1 {", "part tile 1 { } part tile 1 {"),
        problems=["@k %s0: a part has no ops"],
    ),
]

VALUES = [
    broken(
        "a value defined twice in a kernel",
        toys.PIPELINED,
        ("%o = linear(%aq, %attn_output)", "%a = linear(%aq, %attn_output)"),
        ("add(%x, %o)", "add(%x, %a)"),
        problems=["@layer: %a is defined twice"],
    ),
    broken(
        "an operand that nothing defines",
        toys.SMALL,
        ("add(%x, %n)", "add(%x, %m)"),
        problems=["@k %s1: add reads %m, which nothing defines before it"],
    ),
    broken(
        "two ops in the wrong order",
        toys.PIPELINED,
        (
            "%o = linear(%aq, %attn_output) : f32[1,64]\n        %h = add(%x, %o) : f32[1,64]",
            "%h = add(%x, %o) : f32[1,64]\n        %o = linear(%aq, %attn_output) : f32[1,64]",
        ),
        problems=["@layer %s2: add reads %o, which nothing defines before it"],
    ),
    broken(
        "two stages in the wrong order",
        toys.SMALL,
        (
            "stage %s0",
            "stage %s1 after %entry { part tile 8 { %y = add(%x, %n) : f32[1,64] } } stage %s0",
        ),
        (
            (
                "    stage %s1 after %s0 {\n"
                "      part tile 8 { %y = add(%x, %n) : f32[1,64] }\n"
                "    }\n"
            ),
            "",
        ),
        problems=["@k %s1: add reads %n, which nothing defines before it"],
    ),
    broken(
        "operands that do not fit",
        toys.SMALL,
        ("add(%x, %n)", "add(%x, %w)"),
        problems=["@k %s1: add: operands differ: f32[1,64] and f32[64]"],
    ),
    broken(
        "a result of the wrong type",
        toys.SMALL,
        ("%y = add(%x, %n) : f32[1,64]", "%y = add(%x, %n) : f32[1,32]"),
        problems=["@k %s1: add gives f32[1,64], but %y is declared f32[1,32]"],
    ),
    broken(
        "a result without a name",
        toys.SMALL,
        ("part tile 8 {", "part tile 8 { add(%x, %n) "),
        problems=["@k %s1: add gives f32[1,64], but the result has no name"],
    ),
    broken(
        "a name for no result",
        toys.PIPELINED,
        ("store_keys(%keys", "%none = store_keys(%keys"),
        (
            "store_keys(%keys, %kr, %pos, %pages) {head_dim=32}",
            "store_keys(%keys, %kr, %pos, %pages) {head_dim=32} : f32[1,32]",
        ),
        problems=["@layer %s0: store_keys gives no result, but %none is to be one"],
    ),
    broken(
        "an op that is not there",
        toys.SMALL,
        ("add(", "plus("),
        problems=[f"@k %s1: there is no op plus; known: {', '.join(OPS)}"],
    ),
    broken(
        "an attribute that is missing",
        toys.SMALL,
        (" {eps=1e-05}", ""),
        problems=["@k %s0: rms_norm takes the attributes ('eps',), not ()"],
    ),
    broken(
        "an operand that is missing",
        toys.SMALL,
        ("add(%x, %n)", "add(%x)"),
        problems=["@k %s1: add: wrong operands (not enough values to unpack (expected 2, got 1))"],
    ),
    broken(
        "a value written in place",
        toys.PIPELINED,
        ("emit(%next, %ring,", "emit(%next, %next,"),
        problems=[
            "@sample %s0: emit writes %next in place, which is not a parameter",
            "@sample %s0: emit: the token rings must be i32[1,capacity], not i32[1]",
        ],
    ),
    broken(
        "a parameter without use",
        toys.SMALL,
        ("%w : f32[64])", "%w : f32[64], %v : f32[64])"),
        ("call @k(%x, %w)", "call @k(%x, %w, %w)"),
        problems=["@k: parameter %v is not used"],
    ),
    broken(
        "a result that no part computes",
        toys.SMALL,
        ("-> (%y)", "-> (%x)"),
        problems=["@k: result %x is not computed by a part"],
    ),
    broken(
        "a result named twice",
        toys.PROMPT,
        ("-> (%y, %z)", "-> (%y, %y)"),
        problems=["@k: result %y is named twice"],
    ),
]

TILES = [
    broken(
        "a store in every thread",
        toys.PIPELINED,
        ("each %aq", "each store_values(%values, %v, %pos, %pages) {head_dim=32}\n      each %aq"),
        problems=["@layer %s2: each store_values would write %values once for every thread"],
    ),
    broken(
        "two parts that write one state",
        toys.PIPELINED,
        ("store_values(%values, %v, %pos, %pages)", "store_keys(%keys, %v, %pos, %pages)"),
        problems=["@layer %s0: two parts write %keys"],
    ),
    broken(
        "a state read in the stage that writes it",
        toys.PIPELINED,
        ("    }\n    stage %s1 after %s0 {\n", ""),
        ("after %s1", "after %s0"),
        problems=[
            "@layer %s0: attention reads %qr, which another part of the stage writes",
            "@layer %s0: attention reads %keys, which another part of the stage writes",
            "@layer %s0: attention reads %values, which another part of the stage writes",
        ],
    ),
    broken(
        "each thread reads what tiles write",
        toys.PIPELINED,
        (
            "each %xn",
            (
                "each %old = attention(%x, %keys, %values, %pos, %pages) "
                "{heads=2, scale=0.25, softcap=0.0, window=0} : f32[1,64]\n"
                "      each %xn"
            ),
        ),
        problems=[
            "@layer %s0: each attention reads %keys, which tiles of the same stage write",
            "@layer %s0: each attention reads %values, which tiles of the same stage write",
        ],
    ),
    broken(
        "a part that needs the whole of its own value",
        toys.PIPELINED,
        ("%up = linear(%hq, %ffn_up)", "%up = linear(%gate, %ffn_wide)"),
        ("%ffn_up : q4_1[96,64]", "%ffn_wide : q4_1[96,96]"),
        problems=["@layer %s3: linear needs all of %gate, of which each tile makes a piece"],
    ),
    broken(
        "a part that reads another part's rows",
        toys.PIPELINED,
        (
            "linear(%xq, %attn_v) : f32[1,32]\n        store_values(%values, %v, %pos, %pages)",
            "linear(%xq, %attn_v) : f32[1,32]\n        store_values(%values, %k, %pos, %pages)",
        ),
        problems=["@layer %s0: store_values reads %k, which another part of the stage writes"],
    ),
    broken(
        "a private value in another stage",
        toys.PIPELINED,
        ("linear(%hq, %ffn_up)", "linear(%xq, %ffn_up)"),
        problems=["@layer %s3: linear reads %xq, which each thread has for itself in %s0 only"],
    ),
    broken(
        "a private value as a result",
        toys.SMALL,
        ("part tile 8 { %y", "each %y"),
        (
            "%y = add(%x, %n) : f32[1,64] }",
            "%y = add(%x, %n) : f32[1,64]\n part tile 8 { %m = add(%x, %n) : f32[1,64] }",
        ),
        problems=["@k: result %y is not computed by a part"],
    ),
    broken(
        "features and tokens in one part",
        toys.PIPELINED,
        ("each %sq = quantise(%s) : q8[1,96]", ""),
        (
            "%s = swiglu(%gate, %up) : f32[1,96]",
            "%s = swiglu(%gate, %up) : f32[1,96]\n %sq = quantise(%s) : q8[1,96]",
        ),
        problems=["@layer %s3: one part computes linear in 96 features and quantise in one tile"],
    ),
    broken(
        "different row counts in one part",
        toys.PIPELINED,
        (
            "%v = linear(%xq, %attn_v) : f32[1,32]",
            "%v = linear(%xq, %attn_v) : f32[1,32]\n %v2 = linear(%xq, %attn_q) : f32[1,64]",
        ),
        problems=["@layer %s0: one part computes linear in 32 features and linear in 64 features"],
    ),
    broken(
        "a tile that cuts a head",
        toys.PIPELINED,
        ("part tile 32", "part tile 16"),
        problems=[
            "@layer %s0: a tile of 16 rows is no positive multiple of 32, the grain of its ops"
        ],
    ),
    broken(
        "a tile that cuts a group of rows",
        toys.SMALL,
        ("part tile 8", "part tile 12"),
        problems=["@k %s1: a tile of 12 rows is no positive multiple of 8, the grain of its ops"],
    ),
    broken(
        "a tile of no rows",
        toys.SMALL,
        ("part tile 1", "part tile 0"),
        problems=["@k %s0: a tile of 0 rows is no positive multiple of 1, the grain of its ops"],
    ),
]

KERNELS = [*STAGES, *VALUES, *TILES]
