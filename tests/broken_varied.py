"""Broken scalars and variants: numbers of the wrong type, formats that nobody can tell."""

import toys
from broken import broken

VARIED = [
    broken(
        "a constant that is no scalar",
        toys.VARIED,
        ("constant %eps.{0..1} : f32[] = 0.5", "constant %eps.{0..1} : f32[1] = 0.5"),
        ("constant %eps.{2..3} : f32[]", "constant %eps.{2..3} : f32[1]"),
        ("%eps : f32[])", "%eps : f32[1])"),
        problems=["@k %s0: rms_norm: eps is %eps, f32[1], expected f32[]"],
    ),
    broken(
        "a constant of no type there is",
        toys.VARIED,
        ("constant %eps.{2..3}", "constant %more : f16[] = 0.5 constant %eps.{2..3}"),
        problems=["constant %more: is f16[], expected i32[] or f32[]"],
    ),
    broken(
        "a constant that is no integer",
        toys.VARIED,
        ("constant %eps.{2..3}", "constant %more : i32[] = 0.5 constant %eps.{2..3}"),
        problems=["constant %more: 0.5 is no i32[]"],
    ),
    broken(
        "a constant that does not fit 32 bits",
        toys.VARIED,
        ("constant %eps.{2..3}", "constant %more : i32[] = 2147483648 constant %eps.{2..3}"),
        problems=["constant %more: 2147483648 is no i32[]"],
    ),
    broken(
        "a constant with the name of a weight",
        toys.VARIED,
        ("constant %eps.{2..3}", "constant %w.0 : i32[] = 5 constant %eps.{2..3}"),
        problems=["constant %w.0 is already defined"],
    ),
    broken(
        "an attribute that cannot be a parameter",
        toys.VARIED,
        ("linear(%n, %w) : f32[1,32]", "linear(%n, %w) {bias=%eps} : f32[1,32]"),
        problems=["@k %s0: linear takes the attributes (), not ('bias',)"],
    ),
    broken(
        "an attribute whose number is of another type",
        toys.VARIED,
        ("constant %eps.{0..1} : f32[] = 0.5", "constant %eps.{0..1} : i32[] = 5"),
        ("constant %eps.{2..3} : f32[] = 2.0", "constant %eps.{2..3} : i32[] = 2"),
        ("%eps : f32[])", "%eps : i32[])"),
        problems=["@k %s0: rms_norm: eps is %eps, i32[], expected f32[]"],
    ),
    broken(
        "an attribute whose parameter is missing",
        toys.VARIED,
        ("{eps=%eps}", "{eps=%epsilon}"),
        problems=[
            "@k %s0: rms_norm reads %epsilon, which nothing defines before it",
            "@k: parameter %eps is not used",
        ],
    ),
    broken(
        "an attribute twice",
        toys.VARIED,
        ("{eps=%eps}", "{eps=1.0, epsilon=%eps}"),
        problems=["@k %s0: rms_norm takes the attributes ('eps',), not ('eps', 'epsilon')"],
    ),
    broken(
        "a scalar for a tensor",
        toys.VARIED,
        ("stacked %eps = %eps.{0..2}", "stacked %eps = %norm.{0..2}"),
        problems=["loop %i: %y = call @k: %eps is f32[32], but parameter %eps is f32[]"],
    ),
    broken(
        "a carried value that starts in a constant",
        toys.VARIED,
        ("stacked %eps = %eps.{0..2}", "carried %eps = %eps.0 next %y buffers 1"),
        problems=[
            (
                "loop %i: carried %eps: starts in %eps.0, which is a constant and must not be "
                "overwritten"
            ),
            "loop %i: carried %eps: is f32[], but its next %y is f32[1,32]",
        ],
    ),
    broken(
        "formats that nobody chooses",
        toys.VARIED,
        ("variant %w = %w.{0..2}", "stacked %w = %w.{0..2}"),
        problems=["loop %i: stacked %w: mixes f32[32,32] and q8_0[32,32]"],
    ),
    broken(
        "a variant in one format",
        toys.VARIED,
        ("weight %w.1 : q8_0", "weight %w.1 : f32"),
        problems=[
            "loop %i: variant %w: all are f32[32,32]; a weight in one format is stacked",
        ],
    ),
    broken(
        "a format that the kernel does not take",
        toys.VARIED,
        ("weight %w.1 : q8_0", "weight %w.1 : f16"),
        problems=[
            "loop %i: %y = call @k: %w is f32|f16[32,32], but parameter %w is f32|q8_0[32,32]",
        ],
    ),
    broken(
        "a variant of a variant",
        toys.VARIED,
        ("weight %w.1 : q8_0", "weight %w.1 : f32|q8_0"),
        problems=["loop %i: variant %w: takes f32|q8_0[32,32], which is a variant already"],
    ),
    broken(
        "a variant of two shapes",
        toys.VARIED,
        ("weight %w.1 : q8_0[32,32]", "weight %w.1 : q8_0[32,64]"),
        problems=["loop %i: variant %w: mixes f32[32,32] and q8_0[32,64]"],
    ),
    broken(
        "a variant that is no weight",
        toys.VARIED,
        ("weight %w.1 : q8_0", "state %w.1 : q8_0"),
        problems=["loop %i: variant %w: %w.1 is a state, not a weight"],
    ),
    broken(
        "a variant with too few names",
        toys.VARIED,
        ("variant %w = %w.{0..2}", "variant %w = %w.{0..1}"),
        problems=["loop %i: variant %w: 2 names for 3 iterations"],
    ),
    broken(
        "variants in an operand whose format matters",
        toys.VARIED,
        ("%norm : f32[32],", "%norm : f32|q8_0[32],"),
        problems=[
            "@k %s0: rms_norm: the weight must be f32[32], not f32|q8_0[32]",
        ],
    ),
]
