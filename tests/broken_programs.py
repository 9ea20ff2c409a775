"""Broken programs: loops, memory and order; with broken kernels and calls, the whole table."""

import toys
from broken import broken
from broken_calls import CALLS_AND_RESULTS
from broken_kernels import KERNELS
from broken_varied import VARIED

LOOPS = [
    broken(
        "no iterations",
        toys.SMALL,
        ("%i < 4", "%i < 0"),
        problems=[
            "loop %i: 0 iterations; a loop runs at least once",
            "loop %i: stacked %w: 4 names for 0 iterations",
        ],
    ),
    broken(
        "the wrong trip count",
        toys.SMALL,
        ("%i < 4", "%i < 5"),
        problems=["loop %i: stacked %w: 4 names for 5 iterations"],
    ),
    broken(
        "the wrong trip count for a cache",
        toys.PIPELINED,
        ("state %keys = %blk.{0..1}.keys", "state %keys = [%blk.{0..1}.keys, %blk.0.values]"),
        problems=[
            "loop %i: state %keys: 3 names for 2 iterations",
            "loop %i: %blk.0.values is state %keys and also state %values",
        ],
    ),
    broken(
        "nothing says when to stop",
        toys.TOKENS,
        ("loop %t until %done", "loop %t"),
        problems=["loop %t: neither a number of iterations nor `until` says when to stop"],
    ),
    broken(
        "two things say when to stop",
        toys.TOKENS,
        ("loop %t until %done", "loop %t < 3 until %done"),
        problems=["loop %t: both a number of iterations and `until` say when to stop"],
    ),
    broken(
        "stacked weights in an open loop",
        toys.TOKENS,
        (
            "invariant %output_norm.weight = %output_norm.weight",
            "stacked %output_norm.weight = [%output_norm.weight, %blk.0.ffn_norm.weight]",
        ),
        problems=[
            "loop %t: stacked %output_norm.weight: 2 names, but the number of iterations is open"
        ],
    ),
    broken(
        "a state twice",
        toys.PIPELINED,
        ("state %keys = %blk.{0..1}.keys", "state %keys = [%blk.0.keys, %blk.0.keys]"),
        problems=["loop %i: state %keys: a name occurs twice"],
    ),
    broken(
        "stacked weights of two types",
        toys.PIPELINED,
        (
            "stacked %attn_norm.weight = %blk.{0..1}.attn_norm.weight",
            "stacked %attn_norm.weight = [%blk.0.attn_norm.weight, %blk.0.attn_q.weight]",
        ),
        problems=["loop %i: stacked %attn_norm.weight: mixes f32[64] and q4_1[64,64]"],
    ),
    broken(
        "an invariant with two names",
        toys.PIPELINED,
        ("invariant %rope = %rope", "invariant %rope = [%rope, %output_norm.weight]"),
        problems=[
            "loop %i: invariant %rope: 2 names outside, expected 1",
            "loop %i: invariant %rope: mixes f32[16,32] and f32[64]",
        ],
    ),
    broken(
        "two arguments of one name",
        toys.PIPELINED,
        ("stacked %ffn_norm.weight", "stacked %attn_norm.weight"),
        problems=[
            "loop %i: %attn_norm.weight is already defined",
            "loop %i: %y = call @layer: %ffn_norm.weight is not defined here",
        ],
    ),
    broken(
        "an argument that is not there",
        toys.PIPELINED,
        ("invariant %rope = %rope", "invariant %rope = %ropes"),
        problems=[
            "loop %i: %ropes is not defined here",
            "loop %i: %y = call @layer: %rope is not defined here",
        ],
    ),
    broken(
        "a carried value that nobody makes",
        toys.SMALL,
        ("next %y", "next %z"),
        problems=["loop %i: carried %x: next %z is not the result of a call in the body"],
    ),
    broken(
        "a carried value that is an argument",
        toys.SMALL,
        ("next %y", "next %x"),
        problems=["loop %i: carried %x: next %x is not the result of a call in the body"],
    ),
    broken(
        "a carried value that an inner loop leaves behind",
        toys.PERIOD,
        ("%y buffers", "%z buffers"),
        problems=["loop %j: carried %x: next %z is not the result of a call in the body"],
    ),
    broken(
        "a carried value of another type",
        toys.TOKENS,
        ("next %next buffers", "next %logits buffers"),
        problems=["loop %t: carried %token: is i32[1], but its next %logits is f32[1,40]"],
    ),
    broken(
        "three buffers",
        toys.ALTERNATING,
        ("buffers 2", "buffers 3"),
        problems=["loop %i: carried %x: 3 buffers, expected 1 or 2"],
    ),
    broken(
        "one next value for two arguments",
        toys.TOKENS,
        ("next %next_pos", "next %next"),
        problems=["loop %t: carried %pos: next %next is also the next of %token"],
    ),
    broken(
        "a loop that starts in a weight",
        toys.ALTERNATING,
        ("input %x", "weight %x"),
        problems=[
            "loop %i: carried %x: starts in %x, which is a weight and must not be overwritten"
        ],
    ),
    broken(
        "an inner loop that starts in an invariant",
        toys.PERIOD,
        (
            "carried %x = %x next %y buffers 2\n    invariant",
            "carried %x.0 = %x next %y buffers 2\n    invariant %x = %x.1\n    invariant",
        ),
        ("input", "input %x.1 : f32[1,32]\n  input"),
        problems=[
            (
                "loop %j: loop %i: carried %x: starts in %x, which is an invariant argument and "
                "must not be overwritten"
            )
        ],
    ),
    broken(
        "a state that is a result",
        toys.TOKENS,
        ("state %ring = %ring", "state %ring = %token"),
        problems=[
            "loop %t: state %ring: %token is an input, not a state",
            "loop %t: %token is carried %token and also state %ring",
            (
                "loop %t: %next, %done, %next_pos = call @sample: %ring is i32[1], but parameter "
                "%ring is i32[1,16]"
            ),
        ],
    ),
    broken(
        "a state passed on as an invariant",
        toys.TOKENS,
        ("state %ring = %ring", "invariant %ring = %ring"),
        problems=[
            (
                "loop %t: %next, %done, %next_pos = call @sample: writes %ring in place, which "
                "is an invariant argument, not a state"
            )
        ],
    ),
    broken(
        "a cache that is also another argument",
        toys.PIPELINED,
        ("invariant %rope = %rope", "invariant %rope = %rope\n    stacked %old = %blk.{0..1}.keys"),
        problems=[
            "loop %i: %blk.0.keys is stacked %old and also state %keys",
            "loop %i: %blk.1.keys is stacked %old and also state %keys",
        ],
    ),
    broken(
        "a carried value that is also an invariant",
        toys.SMALL,
        ("stacked", "invariant %x.0 = %x\n    stacked"),
        problems=["loop %i: %x is carried %x and also invariant %x.0"],
    ),
    broken(
        "an invariant with a next value",
        toys.PIPELINED,
        ("invariant %pos = %pos", "invariant %pos = %pos next %y buffers 1"),
        problems=["loop %i: invariant %pos: only a carried argument has a next value and buffers"],
    ),
    broken(
        "an argument that leaves the loop",
        toys.SMALL,
        ("yield %y", "yield %x"),
        problems=["loop %i: yield %x: the body does not define it", "output %out: is not defined"],
    ),
    broken(
        "a value that leaves the loop twice",
        toys.SMALL,
        ("yield %y -> %out", "yield %y -> %out\n    yield %y -> %more"),
        problems=["loop %i: yield %y: is yielded twice"],
    ),
    broken(
        "a value that leaves the loop under a taken name",
        toys.SMALL,
        ("yield %y -> %out", "yield %y -> %x"),
        problems=["loop %i: %x is already defined", "output %out: is not defined"],
    ),
    broken(
        "a loop until something outside it",
        toys.TOKENS,
        ("until %done {", "until %pos {"),
        problems=["loop %t: until %pos: the body does not define it"],
    ),
    broken(
        "a loop until something that is no flag",
        toys.TOKENS,
        ("until %done {", "until %logits {"),
        problems=["loop %t: until %logits: is f32[1,40], expected i32[1]"],
    ),
    broken(
        "a loop without a body",
        toys.SMALL,
        ("output", "loop %k < 2 { }\n  output"),
        problems=["loop %k: the body is empty"],
    ),
    broken(
        "a loop with the index of the one around it",
        toys.TOKENS,
        ("loop %i", "loop %t"),
        problems=["loop %t: loop %t: a loop around it has the same index"],
    ),
]

LIFETIMES = [
    broken(
        "a value read after its buffer was reused",
        toys.SMALL,
        (
            "part tile 8 { %y = add(%x, %n) : f32[1,64] }\n    }",
            (
                "part tile 8 { %y = add(%x, %n) : f32[1,64] }\n"
                "    }\n"
                " stage %s2 after %s1 { part tile 8 { %z = add(%x, %y) : f32[1,64] } }"
            ),
        ),
        ("-> (%y)", "-> (%y, %z)"),
        ("%y = call @k", "%y, %z = call @k"),
        ("yield %y", "yield %z"),
        problems=["loop %i: %y, %z = call @k: writes %y over %x, but add in %s2 reads %x after it"],
    ),
    broken(
        "a value overwritten while other tiles read it",
        toys.ALTERNATING,
        ("buffers 2", "buffers 1"),
        problems=[
            (
                "loop %i: %y = call @k: writes %y over %x, but linear in the same stage reads %x "
                "in other tiles"
            )
        ],
    ),
    broken(
        "a value overwritten while each thread reads it",
        toys.SMALL,
        (
            (
                "part tile 1 { %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,64] }\n"
                "    }\n"
                "    stage %s1 after %s0 {"
            ),
            "each %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,64]",
        ),
        problems=[
            (
                "loop %i: %y = call @k: writes %y over %x, but rms_norm in the same stage reads "
                "%x in other tiles"
            )
        ],
    ),
    broken(
        "a later call reads the overwritten value",
        toys.SMALL,
        ("yield %y", "%z = call @k(%x, %w)\n    yield %z"),
        problems=["loop %i: %z = call @k: reads %x: %y = call @k has overwritten it"],
    ),
    broken(
        "the initial value is used after the loop",
        toys.PIPELINED,
        ("@head(%x.2", "@head(%x.0"),
        problems=["%logits = call @head: reads %x.0: loop %i has overwritten it"],
    ),
    broken(
        "the initial value leaves the program",
        toys.ALTERNATING,
        ("output %out", "output %out, %x"),
        problems=["output %x: loop %i has overwritten it"],
    ),
    broken(
        "the value of this iteration is used after an inner loop",
        toys.PERIOD,
        ("@global(%z", "@global(%x"),
        problems=["loop %j: %y = call @global: reads %x: loop %i has overwritten it"],
    ),
    broken(
        "what an inner loop left is overwritten in other tiles",
        toys.PERIOD,
        ("next %y buffers 2", "next %y buffers 1"),
        (
            "part tile 1 { %y = rms_norm(%x, %w) {eps=1e-05} : f32[1,32] }",
            (
                "each %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,32]\n"
                " part tile 8 { %y = add(%x, %n) : f32[1,32] }"
            ),
        ),
        problems=[
            (
                "loop %j: %y = call @global: writes %y over %z, but rms_norm in the same stage "
                "reads %x in other tiles"
            )
        ],
    ),
    broken(
        "an inner loop overwrites the next value",
        toys.PERIOD,
        (
            "carried %x = %x next %y buffers 2\n    invariant",
            "carried %x = %x next %w buffers 2\n    invariant",
        ),
        ("loop %i", "%w = call @global(%x, %b)\n    loop %i"),
        ("carried %x = %x next %y buffers 2\n      ", "carried %x = %w next %y buffers 2\n      "),
        problems=["loop %j: carries %w: loop %i has overwritten it"],
    ),
    broken(
        "an inner loop overwrites what is left behind",
        toys.PERIOD,
        ("loop %i", "%w = call @global(%x, %b)\n    loop %i"),
        ("carried %x = %x next %y buffers 2\n      ", "carried %x = %w next %y buffers 2\n      "),
        ("yield %y -> %out", "yield %w -> %out"),
        problems=["loop %j: yields %w: loop %i has overwritten it"],
    ),
    broken(
        "an input read after the output that feeds it",
        toys.UNROLLED,
        (
            (
                "%done = emit(%next, %ring, %pos, %control) : i32[1]\n"
                "        %next_pos = advance(%pos) : i32[1]"
            ),
            (
                "%next_pos = advance(%pos) : i32[1]\n"
                "        %done = emit(%next, %ring, %pos, %control) : i32[1]"
            ),
        ),
        problems=[
            (
                "%next, %done, %next_pos = call @sample: writes %next_pos over %pos, but emit in "
                "%s0 reads %pos after it"
            )
        ],
    ),
]

RACES = [
    broken(
        "a dropped edge",
        toys.PIPELINED,
        ("stage %s1 after %s0", "stage %s1 after %entry"),
        problems=[
            "@layer %s1 reads %qr, %keys, %values while %s0 may still write them",
            "@layer %s4 writes %x.0 while %s0 may still read it",
        ],
    ),
    broken(
        "an edge from the wrong stage",
        toys.PIPELINED,
        ("stage %s4 after %s3", "stage %s4 after %s2"),
        problems=["@layer %s4 reads %s while %s3 may still write it"],
    ),
    broken(
        "a stage that waits for nothing in a loop",
        toys.SMALL,
        ("stage %s1 after %s0", "stage %s1"),
        problems=[
            "loop %i: %s1 of %y = call @k does not wait for its own previous iteration",
            "@k %s1 reads %n while %s0 may still write it",
            "@k %s1 writes %x while %s0 may still read it",
        ],
    ),
    broken(
        "a dropped barrier",
        toys.LOOPED,
        ("stage %s7 barrier", "stage %s7 after %s5"),
        problems=["@layer %s7 reads %kr while %s6 may still write it"],
    ),
    broken(
        "a dropped barrier, and nothing instead",
        toys.FUSED,
        ("stage %s20 barrier", "stage %s20"),
        problems=[
            "@layer %s20 reads %h while %s12 may still write it",
            "@layer %s20 reads %d while %s19 may still write it",
        ],
    ),
    broken(
        "a result over a value that is still read",
        toys.SMALL,
        (
            "    stage %s1 after %s0 {\n",
            (
                "    stage %s1 after %entry { part tile 8 { %m = add(%x, %x) : f32[1,64] } }\n"
                "    stage %s2 after %s0 {\n"
            ),
        ),
        (
            "  }\n  loop",
            (
                "    stage %s3 after %s1, %s2 { part tile 8 { %z = add(%m, %m) : f32[1,64] } }\n"
                "  }\n  loop"
            ),
        ),
        ("-> (%y)", "-> (%y, %z)"),
        ("%y = call @k", "%y, %z = call @k"),
        ("yield %y", "yield %z"),
        problems=["@k %s2 writes %x while %s1 may still read it"],
    ),
    broken(
        "a cache written while it is still read",
        toys.PIPELINED,
        ("        store_values(%values, %v, %pos, %pages) {head_dim=32}\n", ""),
        (
            "    stage %s2 after",
            (
                "    stage %late after %s0 { part tile 32 { "
                "store_values(%values, %v, %pos, %pages) {head_dim=32} } }\n"
                "    stage %s2 after"
            ),
        ),
        problems=["@layer %late writes %values while %s1 may still read it"],
    ),
    broken(
        "a call that does not wait for the one before",
        toys.LAUNCHES,
        ("launch=item", "launch=program"),
        problems=[
            "%s1 of %c, %d = call @k reads %a while %s0 of %a, %b = call @k may still write it"
        ],
    ),
    broken(
        "a first stage that does not wait",
        toys.SMALL,
        ("stage %s0 after %entry", "stage %s0"),
        problems=[
            "loop %i: %s0 of %y = call @k does not wait for its own previous iteration",
            "loop %i: %s1 of %y = call @k does not wait for its own previous iteration",
        ],
    ),
    broken(
        "a layer that overtakes the one before",
        toys.UNROLLED,
        ("stage %s3 after %s2", "stage %s3"),
        problems=[
            "@layer %s3 reads %h while %s2 may still write it",
            "@layer %s4 reads %h while %s2 may still write it",
            (
                "%s3 of %x.2 = call @layer reads %h of @layer while %s2 of %x.1 = call @layer "
                "may still write it"
            ),
            (
                "%s4 of %x.2 = call @layer reads %h of @layer while %s2 of %x.1 = call @layer "
                "may still write it"
            ),
            (
                "%s3 of %x.2 = call @layer writes %gate of @layer, %up of @layer, %s of @layer "
                "while %s3 of %x.1 = call @layer may still write them"
            ),
            (
                "%s3 of %x.2 = call @layer writes %s of @layer while %s4 of %x.1 = call @layer "
                "may still read it"
            ),
            (
                "%s4 of %x.2 = call @layer reads %s of @layer while %s3 of %x.1 = call @layer "
                "may still write it"
            ),
            (
                "%s4 of %x.2 = call @layer writes %d of @layer while %s4 of %x.1 = call @layer "
                "may still write it"
            ),
        ],
    ),
    broken(
        "a step that overtakes the last token",
        toys.TOKENS,
        (
            "stage %s0 after %entry prefetch {\n      each %xn = rms_norm(%x, %norm)",
            "stage %s0 prefetch {\n      each %xn = rms_norm(%x, %norm)",
        ),
        problems=[
            "loop %t: %s0 of %x.0 = call @embed does not wait for its own previous iteration",
            "loop %t: %s0 of %y = call @layer does not wait for its own previous iteration",
            "loop %t: %s1 of %y = call @layer does not wait for its own previous iteration",
            "loop %t: %s2 of %y = call @layer does not wait for its own previous iteration",
            "loop %t: %s3 of %y = call @layer does not wait for its own previous iteration",
            "loop %t: %s4 of %y = call @layer does not wait for its own previous iteration",
            "loop %t: %s0 of %logits = call @head does not wait for its own previous iteration",
            (
                "loop %t: %s0 of %next, %done, %next_pos = call @sample does not wait for its "
                "own previous iteration"
            ),
            (
                "%s0 of %logits = call @head reads %x.0 while %s0 of %x.0 = call @embed may "
                "still write it"
            ),
            (
                "%s0 of %logits = call @head reads %x.0 while %s4 of %y = call @layer may still "
                "write it"
            ),
            (
                "%s0 of %next, %done, %next_pos = call @sample writes %token while %s0 of %x.0 = "
                "call @embed may still read it"
            ),
        ],
    ),
    broken(
        "a stage that overtakes a loop",
        toys.SMALL,
        (
            "kernel @k(",
            (
                "kernel @late(%x : f32[1,64]) -> (%y, %z) {\n"
                " stage %s0 after %entry { part tile 8 { %y = add(%x, %x) : f32[1,64] } }\n"
                " stage %s1 { part tile 8 { %z = add(%x, %x) : f32[1,64] } } }\n"
                " kernel @k("
            ),
        ),
        ("output %out", "%a, %b = call @late(%out)\n  output %b"),
        problems=[
            "%s1 of %a, %b = call @late reads %x while %s1 of %y = call @k may still write it"
        ],
    ),
]

BROKEN = [*KERNELS, *CALLS_AND_RESULTS, *LOOPS, *VARIED, *LIFETIMES, *RACES]
