"""Broken calls: names that are not there, arguments that do not fit, wrong outputs."""

import toys
from broken import broken

CALLS = [
    broken(
        "a name declared twice",
        toys.SMALL,
        ("weight", "weight %x : f32[1,64]\n  weight"),
        problems=["weight %x is already defined"],
    ),
    broken(
        "a call before its argument",
        toys.PIPELINED,
        (toys.FIRST, ""),
        ("  %logits = call", toys.FIRST + "  %logits = call"),
        problems=[
            "loop %i: %x.0 is not defined here",
            "loop %i: %y = call @layer: %x is not defined here",
        ],
    ),
    broken(
        "a name from inside a loop",
        toys.SMALL,
        ("output %out", "output %y"),
        problems=["output %y: is not defined"],
    ),
    broken(
        "a name from outside a loop",
        toys.SMALL,
        ("call @k(%x, %w)", "call @k(%x, %w.0)"),
        problems=["loop %i: %y = call @k: %w.0 is not defined here"],
    ),
    broken(
        "an argument too few",
        toys.SMALL,
        ("call @k(%x, %w)", "call @k(%x)"),
        problems=["loop %i: %y = call @k: 1 arguments for 2 parameters"],
    ),
    broken(
        "arguments swapped",
        toys.SMALL,
        ("call @k(%x, %w)", "call @k(%w, %x)"),
        problems=[
            "loop %i: %y = call @k: %w is f32[64], but parameter %x is f32[1,64]",
            "loop %i: %y = call @k: %x is f32[1,64], but parameter %w is f32[64]",
        ],
    ),
    broken(
        "a result too many",
        toys.SMALL,
        ("%y = call", "%y, %z = call"),
        problems=["loop %i: %y, %z = call @k: 2 names for 1 results"],
    ),
    broken(
        "a result over an argument",
        toys.PIPELINED,
        ("%logits = call @head", "%x.2 = call @head"),
        ("call @sample(%logits", "call @sample(%x.2"),
        ("output %next, %next_pos, %done, %logits", "output %next, %next_pos, %done"),
        problems=[
            "%x.2 = call @head: %x.2 is already defined",
            (
                "%next, %done, %next_pos = call @sample: %x.2 is f32[1,64], but parameter "
                "%logits is f32[1,40]"
            ),
        ],
    ),
    broken(
        "a weight written in place",
        toys.UNROLLED,
        ("state %ring : i32[1,16]", "weight %ring : i32[1,16]"),
        problems=[
            (
                "%next, %done, %next_pos = call @sample: writes %ring in place, which is a "
                "weight, not a state"
            )
        ],
    ),
    broken(
        "a result written in place",
        toys.ALTERNATING,
        (
            "%x : f32[1,32], %w : f32[32,32]) ->",
            "%x : f32[1,32], %w : f32[32,32], %pos : i32[1], %pages : i32[1,1], "
            "%cache : f32[1,1,16,32]) ->",
        ),
        (
            "%y = linear(%x, %w) : f32[1,32] }",
            (
                "%y = linear(%x, %w) : f32[1,32] } part tile 32 { "
                "store_keys(%cache, %x, %pos, %pages) {head_dim=32} }"
            ),
        ),
        (
            "input",
            "input %pos : i32[1]\n  input %pages : i32[1,1]\n  input %cache : f32[1,1,16,32]\n"
            "  input",
        ),
        (
            "stacked",
            "invariant %pos = %pos\n    invariant %pages = %pages\n    invariant %cache = %cache\n"
            "    stacked",
        ),
        ("call @k(%x, %w)", "call @k(%x, %w, %pos, %pages, %cache)"),
        problems=[
            (
                "loop %i: %y = call @k: writes %cache in place, which is an invariant argument, "
                "not a state"
            )
        ],
    ),
    broken(
        "one state for two parameters",
        toys.PIPELINED,
        ("%rope, %keys, %values,", "%rope, %keys, %keys,"),
        problems=["loop %i: %y = call @layer: writes %keys, which is also another argument"],
    ),
]

RESULTS = [
    broken(
        "an output that is not there",
        toys.SMALL,
        ("output %out", "output %out, %in"),
        problems=["output %in: is not defined"],
    ),
    broken(
        "an output named twice",
        toys.SMALL,
        ("output %out", "output %out, %out"),
        problems=["output %out: is named twice"],
    ),
    broken(
        "a feedback that is not computed",
        toys.PIPELINED,
        ("feedback %next ->", "feedback %pos ->"),
        problems=["feedback %pos -> %token: %pos is not computed"],
    ),
    broken(
        "a feedback to a weight",
        toys.PIPELINED,
        ("-> %token\n", "-> %rope\n"),
        problems=["feedback %next -> %rope: %rope is not an input"],
    ),
    broken(
        "two feedbacks to one input",
        toys.PIPELINED,
        ("-> %token\n", "-> %pos\n"),
        problems=["feedback %next_pos -> %pos: %pos is already fed"],
    ),
    broken(
        "a feedback of the wrong type",
        toys.PIPELINED,
        ("feedback %next ->", "feedback %logits ->"),
        problems=["feedback %logits -> %token: f32[1,40] does not fit i32[1]"],
    ),
    broken(
        "until something that is no output",
        toys.PIPELINED,
        ("until %done", "until %pos"),
        problems=["until %pos: is not an output"],
    ),
    broken(
        "until something that is no flag",
        toys.PIPELINED,
        ("until %done", "until %logits"),
        problems=["until %logits: is f32[1,40], expected i32[1]"],
    ),
]

CALLS_AND_RESULTS = [*CALLS, *RESULTS]
