"""Text: what is printed parses back to an equal object, and errors say where and what."""

import random
from dataclasses import replace

import pytest
import toys
from broken_programs import BROKEN
from hypothesis import given
from hypothesis import strategies as st
from random_programs import random_program

from hotloop.ir.graph import Attr, Graph, Op, Value
from hotloop.ir.names import NAME, Row, blocks, compress, expand
from hotloop.ir.parse import parse, parse_graph, parse_kernel, parse_program
from hotloop.ir.program import (
    Call,
    Constant,
    Item,
    Kernel,
    Loop,
    LoopArg,
    Part,
    Program,
    Stage,
)
from hotloop.ir.text import print_kernel, text
from hotloop.ir.types import FORMATS, TensorType, tensor, variant
from hotloop.util.errors import ProgramError

# Anything that can be printed: names, numbers and structure at random, sense not required ---------

NAMES = st.one_of(
    st.from_regex(r"\A[a-z][a-z0-9._/-]{0,6}\Z").filter(NAME.fullmatch),
    st.builds(
        lambda prefix, number, suffix: f"{prefix}.{number}{suffix}",
        st.sampled_from(["blk", "x", "w"]),
        st.one_of(st.integers(0, 12).map(str), st.sampled_from(["007", "0", "00"])),
        st.sampled_from(["", ".w", ".1", ".w.2"]),
    ),
)
VARIANTS = st.lists(st.sampled_from(list(FORMATS.values())), min_size=2, max_size=3, unique=True)
TYPES = st.builds(
    TensorType,
    st.sampled_from(list(FORMATS.values())) | st.builds(variant, VARIANTS),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
VALUES = st.builds(Value, NAMES, TYPES)
ATTRS: st.SearchStrategy[Attr] = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=6)
)
WORDS = st.sampled_from(["add", "input", "output", "until", "part", "each", "call", "loop", "inf"])


def _many(strategy: st.SearchStrategy, size: int = 4) -> st.SearchStrategy:
    return st.lists(strategy, max_size=size).map(tuple)


OPS = st.builds(
    Op,
    WORDS,
    _many(NAMES),
    st.none() | VALUES,
    _many(st.tuples(st.just("eps"), ATTRS), 2),
    _many(st.tuples(st.just("scale"), NAMES), 2),
)
CONSTANTS = st.builds(Constant, VALUES, st.integers() | st.floats(allow_nan=False))
GRAPHS = st.builds(
    Graph,
    NAMES,
    _many(VALUES),
    _many(VALUES, 12),
    _many(VALUES),
    _many(OPS),
    _many(NAMES),
    _many(st.tuples(NAMES, NAMES), 2),
    st.just("") | NAMES,
)
STAGES = st.builds(
    Stage,
    NAMES,
    _many(NAMES, 2),
    _many(OPS, 2),
    _many(st.builds(Part, _many(OPS, 2), st.integers(-1, 64)), 2),
    st.booleans(),
    st.booleans(),
)
KERNELS = st.builds(Kernel.of, NAMES, _many(VALUES, 6), _many(NAMES, 2), _many(STAGES, 2))
ARGS = st.builds(
    LoopArg,
    st.sampled_from(["invariant", "stacked", "variant", "carried", "state"]),
    NAMES,
    st.one_of(st.tuples(NAMES), _many(NAMES, 6)),
    st.just("") | NAMES,
    st.integers(1, 3),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    kernels = draw(st.lists(KERNELS, min_size=1, max_size=2, unique_by=lambda kernel: kernel.name))
    items: st.SearchStrategy[Item] = st.builds(
        Call, st.sampled_from(kernels), _many(NAMES, 8), _many(NAMES, 2)
    )
    for _ in range(2):
        items = items | st.builds(
            Loop,
            NAMES,
            st.none() | st.integers(0, 40),
            _many(ARGS, 8),
            _many(items, 2),
            _many(st.tuples(NAMES, NAMES), 2),
            st.just("") | NAMES,
        )
    return draw(
        st.builds(
            Program,
            NAMES,
            _many(VALUES),
            _many(VALUES, 12),
            _many(VALUES),
            _many(items, 3),
            _many(NAMES),
            _many(st.tuples(NAMES, NAMES), 2),
            st.just("") | NAMES,
            st.sampled_from(["item", "program"]),
            _many(CONSTANTS),
        )
    )


@given(programs())
def test_programs_round_trip(program: Program) -> None:
    printed = text(program)
    found = parse_program(printed)
    assert found == program
    assert text(found) == printed
    assert all(a is b for a, b in zip(found.kernels, program.kernels, strict=True))


@given(GRAPHS)
def test_graphs_round_trip(graph: Graph) -> None:
    assert parse_graph(text(graph)) == graph


@given(KERNELS)
def test_kernels_come_back_as_the_same_object(kernel: Kernel) -> None:
    assert parse_kernel(print_kernel(kernel)) is kernel


@given(programs(), st.integers(0, 2**32))
def test_line_breaks_and_comments_mean_nothing(program: Program, seed: int) -> None:
    chance = random.Random(seed)
    lines = [line + chance.choice(["\n", " ", " # %x = }\n"]) for line in text(program).split("\n")]
    assert parse_program("".join(lines)) == program


@pytest.mark.parametrize("name", toys.VALID)
def test_toys_round_trip(name: str) -> None:
    program = toys.program(name)
    assert parse(text(program)) == program
    assert all(len(line) <= 100 for line in text(program).splitlines())


def test_the_toy_graph_round_trips() -> None:
    assert parse(text(toys.graph())) == toys.graph()


def test_random_and_broken_programs_round_trip() -> None:
    for program in [*map(random_program, range(60)), *(case.program() for case in BROKEN)]:
        assert parse_program(text(program)) == program


# How it looks ------------------------------------------------------------------------------------


def test_the_form_is_the_documented_one() -> None:
    assert text(toys.program("small")) == (
        """program @small launch=program {
  input %x : f32[1,64]
  weight %w.{0..3} : f32[64]
  kernel @k(%x : f32[1,64], %w : f32[64]) -> (%y) {
    stage %s0 after %entry {
      part tile 1 {
        %n = rms_norm(%x, %w) {eps=1e-05} : f32[1,64]
      }
    }
    stage %s1 after %s0 {
      part tile 8 {
        %y = add(%x, %n) : f32[1,64]
      }
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
    )


def test_thirty_layers_take_one_line_for_each_tensor() -> None:
    weights = tuple(
        Value(f"blk.{i}.{what}", tensor("f32", 64)) for i in range(30) for what in ("a", "b", "c")
    )
    graph = Graph("g", (), weights, (), (), ())
    assert text(graph) == (
        "graph @g {\n"
        "  weight %blk.{0..29}.a : f32[64],\n"
        "         %blk.{0..29}.b : f32[64],\n"
        "         %blk.{0..29}.c : f32[64]\n"
        "}\n"
    )
    assert parse_graph(text(graph)) == graph


def test_mixed_types_break_a_family() -> None:
    formats = ["q4_0", "q4_0", "q8_0", "q4_0", "q4_0"]
    weights = tuple(Value(f"w.{i}", tensor(f, 32)) for i, f in enumerate(formats))
    graph = Graph("g", (), weights, (), (), ())
    assert [line.strip() for line in text(graph).splitlines()[1:-1]] == [
        "weight %w.{0..1} : q4_0[32]",
        "weight %w.2 : q8_0[32]",
        "weight %w.{3..4} : q4_0[32]",
    ]


@pytest.mark.parametrize(
    ("arg", "line"),
    [
        (LoopArg("stacked", "w", ("b.0", "b.1", "b.2")), "stacked %w = %b.{0..2}"),
        (LoopArg("stacked", "w", ("b.0", "b.1", "x")), "stacked %w = [%b.{0..1}, %x]"),
        (LoopArg("stacked", "w", ("b.0",)), "stacked %w = %b.0"),
        (LoopArg("state", "w", ()), "state %w = []"),
        (LoopArg("invariant", "w", ("w",)), "invariant %w = %w"),
        (LoopArg("carried", "x", ("a",), "y", 2), "carried %x = %a next %y buffers 2"),
        (LoopArg("carried", "x", ("a",), "y"), "carried %x = %a next %y buffers 1"),
    ],
)
def test_arguments(arg: LoopArg, line: str) -> None:
    program = toys.program("small")
    (loop,) = program.body
    assert isinstance(loop, Loop)
    changed = replace(program, body=(replace(loop, args=(arg,)),))
    assert f"\n    {line}\n" in text(changed)
    assert parse_program(text(changed)) == changed


@pytest.mark.parametrize(
    "value",
    [0, -1, 1.0, -0.0, 1e-5, 0.1, 1e22, float("inf"), float("-inf"), 5e-324, "half", "", '"'],
)
def test_attributes_keep_type_and_value(value: Attr) -> None:
    graph = Graph("g", (), (), (), (Op("f", (), None, (("a", value),)),), ())
    (op,) = parse_graph(text(graph)).ops
    assert repr(op.attr("a")) == repr(value)


# Runs of names -----------------------------------------------------------------------------------


@given(_many(NAMES, 12))
def test_names_round_trip(names: tuple[str, ...]) -> None:
    assert tuple(name for word in compress(names) for name in expand(word)) == names


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 1)), max_size=12))
def test_rows_round_trip(rows: list[tuple[str, str, int]]) -> None:
    given_rows = [Row(row[:2], row[2]) for row in rows]
    found = []
    for block in blocks(given_rows):
        columns = [[expand(word) for word in row.names] for row in block]
        for k in range(len(columns[0][0])):
            found += [
                Row(tuple(names[k] for names in column), row.rest)
                for column, row in zip(columns, block, strict=True)
            ]
    assert found == given_rows


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], []),
        (["a"], ["a"]),
        (["a.0", "a.1"], ["a.{0..1}"]),
        (["a.0", "a.2"], ["a.0", "a.2"]),
        (["a.0", "a.2", "a.4"], ["a.{0..4..2}"]),
        (["a.9", "a.10", "a.11"], ["a.{9..11}"]),
        (["a.1", "a.0"], ["a.1", "a.0"]),
        (["a.01", "a.02"], ["a.01", "a.02"]),
        (["a.1.b.1", "a.2.b.2"], ["a.1.b.1", "a.2.b.2"]),
        (["a.1.b.1", "a.1.b.2", "a.2.b.1"], ["a.1.b.{1..2}", "a.2.b.1"]),
        (["k0v0", "k1v0", "k2v0", "x"], ["k{0..2}v0", "x"]),
    ],
)
def test_compressing_names(names: list[str], words: list[str]) -> None:
    assert compress(names) == words
    assert [name for word in words for name in expand(word)] == names


@pytest.mark.parametrize("word", ["a.{3..1}", "a.{0..5..2}", "a.{0..4..0}", "{0..1}.{0..1}", "{}"])
def test_ranges_that_make_no_sense(word: str) -> None:
    with pytest.raises(ValueError, match=r"range|count up"):
        expand(word)


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "line 1: found the end of the text, expected graph, kernel or program"),
        ("graph {", "line 1: found {, expected a name such as @layer"),
        ("graph @g {", "line 1: found the end of the text, expected an op such as add(%a, %b)"),
        ("graph @g { } }", "line 1: found }, expected the end of the text"),
        (
            "graph @g {\n  input x : f32[1]\n}",
            "line 2: found x, expected (",
        ),
        ("graph @g {\n  input %x f32[1]\n}", "line 2: found f32, expected :"),
        (
            "graph @g {\n  input %x : f64[1]\n}",
            "line 2: found f64, expected a format: " + ", ".join(FORMATS),
        ),
        ("graph @g {\n  input %x : f32[a]\n}", "line 2: found a, expected a dimension"),
        ("graph @g {\n  input %x : f32[1.5]\n}", "line 2: found 1.5, expected a dimension"),
        ("graph @g {\n  input %x : f32[1\n}", "line 3: found }, expected ]"),
        ("graph @g {\n\n  %y = %x\n}", "line 3: found %x, expected an op such as add(%a, %b)"),
        ("graph @g {\n  %y = add(%a, b)\n}", "line 2: found b, expected a name such as %x"),
        ("graph @g {\n  %y = add(%a)\n}", "line 3: found }, expected :"),
        ("graph @g {\n  %y.{0..1} = add(%a) : f32[1]\n}",
         "line 2: found %y.{0..1}, expected one name, not a run of names"),
        ("graph @g {\n  f(%x) {a=b}\n}", 'line 2: found b, expected a number or a "text"'),
        ("graph @g {\n  f(%x) {a=\"\\q\"}\n}",
         'line 2: found "\\q", expected a text with JSON\'s escapes'),
        ("graph @g {\n  f(%x) {a=\"b}\n}", 'line 2: found ", expected a number or a "text"'),
        ("graph @g {\n  weight %w.{2..1} : f32[1]\n}",
         "line 2: found %w.{2..1}, expected {2..1} does not count up to its end"),
        ("graph @g {\n  weight %w.{0..1} : f32[1],\n  %v.{0..2} : f32[1]\n}",
         "line 2: found %w.{0..1}, expected runs of equal length, joined by commas"),
        ("graph @g { feedback %a %b }", "line 1: found %b, expected ->"),
        ("graph @g { ; }", "line 1: found ;, expected an op such as add(%a, %b)"),
        ("program @p {", "line 1: found {, expected launch"),
        ("program @p launch=never {", "line 1: found never, expected item or program"),
        ("program @p launch=item {\n  call @k()\n}",
         "line 2: found @k, expected a kernel defined above: @"),
        ("program @p launch=item {\n  %y = @k()\n}", "line 2: found @k, expected call"),
        ("program @p launch=item {\n  kernel @k() -> () { }\n}",
         "line 3: found the end of the text, expected a call of @k, which the program defines"),
        ("program @p launch=item {\n  kernel @k() -> () { }\n  kernel @k() -> () { }\n}",
         "line 3: found @k, expected a kernel of another name"),
        ("program @p launch=item {\n  loop %i < n { }\n}",
         "line 2: found n, expected a number of iterations"),
        ("program @p launch=item {\n  loop %i < 2 {\n    moved %x = %y\n  }\n}",
         "line 3: found moved, expected a call, a loop or }"),
        ("program @p launch=item {\n  loop %i < 2 {\n    stacked %x.{0..1} = %y\n  }\n}",
         "line 3: found %x.{0..1}, expected a run of 1 names, one for each name outside"),
        ("kernel @k() -> () {\n  part tile 8 { }\n}", "line 2: found part, expected stage"),
        ("kernel @k() -> () {\n  stage %s {\n    tile 8 { }\n  }\n}",
         "line 3: found tile, expected each, part or }"),
        ("kernel @k() -> () {\n  stage %s {\n    part 8 { }\n  }\n}",
         "line 3: found 8, expected tile"),
        ("kernel @k() (%y) { }", "line 1: found (, expected ->"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what(source: str, message: str) -> None:
    with pytest.raises(ProgramError) as error:
        parse(source)
    assert str(error.value) == message


def test_the_wrong_kind_of_text() -> None:
    with pytest.raises(ProgramError, match="found a kernel, expected a program"):
        parse_program("kernel @k() -> () { }")


@given(st.integers(0, 10**6), st.sampled_from(["drop", "double", "swap"]))
def test_damaged_text_is_an_error_or_a_program(seed: int, damage: str) -> None:
    chance = random.Random(seed)
    words = text(toys.program("small")).split()
    at = chance.randrange(len(words) - 1)
    if damage == "drop":
        del words[at]
    elif damage == "double":
        words.insert(at, words[at])
    else:
        words[at], words[at + 1] = words[at + 1], words[at]
    try:
        program = parse(" ".join(words))
    except ProgramError:
        return
    assert parse(text(program)) == program
