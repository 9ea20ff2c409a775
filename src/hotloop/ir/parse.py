"""Read back the text that `hotloop.ir.text` prints; kernels come back as the interned objects.

`parse` takes a graph, a kernel or a program. Text that is none of them is a `ProgramError` with the
line, what was found there and what was expected. Only the grammar is checked here: whether the
program makes sense is for `hotloop.ir.verify`.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, get_args

from hotloop.ir.graph import Attr, Graph, Op, Value
from hotloop.ir.names import WORD, expand
from hotloop.ir.program import (
    ArgKind,
    Call,
    Constant,
    Item,
    Kernel,
    Launch,
    Loop,
    LoopArg,
    Part,
    Program,
    Stage,
)
from hotloop.ir.types import FORMATS, Format, TensorType, variant
from hotloop.util.errors import ProgramError

T = TypeVar("T")

_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<line>\n)
    |(?P<name>%{WORD})
    |(?P<symbol>@[^\s(){{}},=%@]+)
    |(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|-inf\b)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<mark>->|[(){{}}\[\],:=<|])
    |(?P<other>.)""",
    re.VERBOSE,
)

_ARG_KINDS: tuple[ArgKind, ...] = get_args(ArgKind)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(source: str) -> Graph | Kernel | Program:
    """The graph, kernel or program that `source` describes."""
    return _Parser(source).document()


def parse_graph(source: str) -> Graph:
    return _only(Graph, source)


def parse_kernel(source: str) -> Kernel:
    return _only(Kernel, source)


def parse_program(source: str) -> Program:
    return _only(Program, source)


def _only(kind: type[T], source: str) -> T:
    thing = parse(source)
    if not isinstance(thing, kind):
        found = type(thing).__name__.lower()
        raise ProgramError(f"line 1: found a {found}, expected a {kind.__name__.lower()}")
    return thing


def _tokens(source: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind == "line":
            line += 1
        elif kind != "space":
            yield _Token(kind, match.group(), line)
    yield _Token("end", "the end of the text", line)


class _Parser:
    """Recursive descent: a method for each rule of the grammar, a token of lookahead."""

    def __init__(self, source: str) -> None:
        self.tokens = list(_tokens(source))
        self.at = 0
        self.kernels: dict[str, Kernel] = {}
        self.called: set[str] = set()

    # Tokens --------------------------------------------------------------------------------------

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def error(self, expected: str, token: _Token | None = None) -> ProgramError:
        token = token or self.token
        return ProgramError(f"line {token.line}: found {token.text}, expected {expected}")

    def take(self, kind: str, expected: str) -> str:
        token = self.token
        if token.kind != kind:
            raise self.error(expected)
        self.at += 1
        return token.text

    def accept(self, text: str) -> bool:
        """Step over `text` where it comes next: a word or a mark."""
        found = self.token.text == text and self.token.kind in ("word", "mark")
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(text)

    def words(self) -> tuple[str, ...]:
        """A name or a run of names."""
        token = self.token
        word = self.take("name", "a name such as %x")
        try:
            return expand(word[1:])
        except ValueError as error:
            raise self.error(str(error), token) from None

    def name(self) -> str:
        token = self.token
        names = self.words()
        if len(names) > 1:
            raise self.error("one name, not a run of names", token)
        return names[0]

    def symbol(self) -> str:
        return self.take("symbol", "a name such as @layer")[1:]

    def integer(self, what: str) -> int:
        token = self.token
        text = self.take("number", what)
        if not re.fullmatch(r"-?\d+", text):
            raise self.error(what, token)
        return int(text)

    def separated(self, entry: Callable[[], T]) -> list[T]:
        """entry, entry, …: at least one."""
        entries = [entry()]
        while self.accept(","):
            entries.append(entry())
        return entries

    def closed(self, entry: Callable[[], T], close: str) -> list[T]:
        """entry, …, `close`: possibly none."""
        entries = [] if self.token.text == close else self.separated(entry)
        self.expect(close)
        return entries

    def block(self, statement: Callable[[], None]) -> None:
        self.expect("{")
        while not self.accept("}"):
            statement()

    # Documents -----------------------------------------------------------------------------------

    def document(self) -> Graph | Kernel | Program:
        what = "graph, kernel or program"
        rules: dict[str, Callable[[], Graph | Kernel | Program]] = {
            "graph": self.graph,
            "kernel": self.kernel,
            "program": self.program,
        }
        rule = rules.get(self.token.text)
        if rule is None:
            raise self.error(what)
        self.at += 1
        thing = rule()
        if self.token.kind != "end":
            raise self.error("the end of the text")
        return thing

    def graph(self) -> Graph:
        name, head, ops = self.symbol(), _Head(), list[Op]()

        def statement() -> None:
            if not self.head(head):
                ops.append(self.op())

        self.block(statement)
        return Graph(name, *head.declared(), tuple(ops), *head.results(), count=head.count)

    def program(self) -> Program:
        name, head, body = self.symbol(), _Head(), list[Item]()
        constants: list[Constant] = []
        self.expect("launch")
        self.expect("=")
        launch: Launch = "item" if self.accept("item") else "program"
        if launch == "program" and not self.accept("program"):
            raise self.error("item or program")

        def statement() -> None:
            if self.accept("kernel"):
                self.define_kernel()
            elif self.accept("constant"):
                constants.extend(self.constants())
            elif not self.head(head):
                body.append(self.item())

        self.block(statement)
        if uncalled := [name for name in self.kernels if name not in self.called]:
            raise self.error(f"a call of @{uncalled[0]}, which the program defines")
        return Program(
            name,
            *head.declared(),
            tuple(body),
            *head.results(),
            launch,
            tuple(constants),
            count=head.count,
        )

    def head(self, head: "_Head") -> bool:
        """A declaration or a result; False where something else comes next."""
        if self.tokens[min(self.at + 1, len(self.tokens) - 1)].kind != "name":
            return False
        if self.token.text in ("input", "weight", "state"):
            self.declaration(head.values[self.token.text])
        elif self.accept("output"):
            head.outputs += [name for names in self.separated(self.words) for name in names]
        elif self.accept("feedback"):
            source = self.name()
            self.expect("->")
            head.feedback.append((source, self.name()))
        elif self.accept("until"):
            head.until = self.name()
        elif self.accept("count"):
            head.count = self.name()
        else:
            return False
        return True

    def declaration(self, into: list[Value]) -> None:
        self.at += 1
        start = self.token

        def entry() -> list[Value]:
            names = self.words()
            self.expect(":")
            type = self.type()
            return [Value(name, type) for name in names]

        into += self.together(self.separated(entry), start)

    def constants(self) -> list[Constant]:
        start = self.token

        def entry() -> list[Constant]:
            names = self.words()
            self.expect(":")
            type = self.type()
            self.expect("=")
            number = self.number()
            return [Constant(Value(name, type), number) for name in names]

        return self.together(self.separated(entry), start)

    def number(self) -> int | float:
        token = self.token
        if token.text in ("inf", "nan") or token.kind == "number":
            self.at += 1
            return int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)
        raise self.error("a number")

    def together(self, families: list[list[T]], start: _Token) -> list[T]:
        """The first of each family, then the second of each, …"""
        if len({len(family) for family in families}) > 1:
            raise self.error("runs of equal length, joined by commas", start)
        return [one for row in zip(*families, strict=True) for one in row]

    def type(self) -> TensorType:
        format = self.format()
        if self.accept("|"):
            others = [self.format()]
            while self.accept("|"):
                others.append(self.format())
            format = variant([format, *others])
        self.expect("[")
        return TensorType(format, tuple(self.closed(lambda: self.integer("a dimension"), "]")))

    def format(self) -> Format:
        token = self.token
        format = FORMATS.get(self.take("word", "a type such as f32[1,576]"))
        if format is None:
            raise self.error("a format: " + ", ".join(FORMATS), token)
        return format

    # Kernels -------------------------------------------------------------------------------------

    def define_kernel(self) -> None:
        token = self.token
        kernel = self.kernel()
        if kernel.name in self.kernels:
            raise self.error("a kernel of another name", token)
        self.kernels[kernel.name] = kernel

    def kernel(self) -> Kernel:
        name, stages = self.symbol(), list[Stage]()
        self.expect("(")
        params = self.closed(self.value, ")")
        self.expect("->")
        self.expect("(")
        results = self.closed(self.name, ")")
        self.block(lambda: stages.append(self.stage()))
        return Kernel.of(name, tuple(params), tuple(results), tuple(stages))

    def value(self) -> Value:
        name = self.name()
        self.expect(":")
        return Value(name, self.type())

    def stage(self) -> Stage:
        self.expect("stage")
        name, each, parts = self.name(), list[Op](), list[Part]()
        after = tuple(self.separated(self.name)) if self.accept("after") else ()
        barrier, prefetch = self.accept("barrier"), self.accept("prefetch")

        def statement() -> None:
            if self.accept("part"):
                parts.append(self.part())
            elif self.accept("each"):
                each.append(self.op())
            else:
                raise self.error("each, part or }")

        self.block(statement)
        return Stage(name, after, tuple(each), tuple(parts), barrier, prefetch)

    def part(self) -> Part:
        self.expect("tile")
        tile, ops = self.integer("the rows of a tile"), list[Op]()
        self.block(lambda: ops.append(self.op()))
        return Part(tuple(ops), tile)

    def op(self) -> Op:
        result = self.name() if self.token.kind == "name" else None
        if result is not None:
            self.expect("=")
        name = self.take("word", "an op such as add(%a, %b)")
        self.expect("(")
        operands = tuple(self.closed(self.name, ")"))
        attrs, scalars = list[tuple[str, Attr]](), list[tuple[str, str]]()

        def attribute() -> None:
            attr = self.take("word", "an attribute such as eps=1e-05")
            self.expect("=")
            if self.token.kind == "name":
                scalars.append((attr, self.name()))
            else:
                attrs.append((attr, self.attribute()))

        if self.accept("{"):
            self.closed(attribute, "}")
        typed = None
        if result is not None:
            self.expect(":")
            typed = Value(result, self.type())
        return Op(name, operands, typed, tuple(attrs), tuple(scalars))

    def attribute(self) -> Attr:
        token = self.token
        if token.kind == "string":
            self.at += 1
            return self.string(token)
        if token.kind != "number" and token.text not in ("inf", "nan"):
            self.at += token.kind != "end"
            raise self.error('a number or a "text"', token)
        return self.number()

    def string(self, token: _Token) -> str:
        try:
            return str(json.loads(token.text))
        except ValueError:
            raise self.error("a text with JSON's escapes", token) from None

    # Calls and loops -----------------------------------------------------------------------------

    def item(self) -> Item:
        return self.loop() if self.accept("loop") else self.call()

    def call(self) -> Call:
        results = self.separated(self.name) if self.token.kind == "name" else []
        if results:
            self.expect("=")
        elif self.token.text != "call":
            raise self.error("a call, a loop or }")
        self.expect("call")
        token = self.token
        kernel = self.kernels.get(self.symbol())
        if kernel is None:
            raise self.error("a kernel defined above: @" + ", @".join(self.kernels), token)
        self.called.add(kernel.name)
        self.expect("(")
        args = [name for names in self.closed(self.words, ")") for name in names]
        return Call(kernel, tuple(args), tuple(results))

    def loop(self) -> Loop:
        index = self.name()
        trip = self.integer("a number of iterations") if self.accept("<") else None
        until = self.name() if self.accept("until") else ""
        args, body, yields = list[LoopArg](), list[Item](), list[tuple[str, str]]()

        def statement() -> None:
            kind = next((kind for kind in _ARG_KINDS if self.accept(kind)), None)
            if kind:
                args.extend(self.arguments(kind))
            elif self.accept("yield"):
                inner = self.name()
                self.expect("->")
                yields.append((inner, self.name()))
            else:
                body.append(self.item())

        self.block(statement)
        return Loop(index, trip, tuple(args), tuple(body), tuple(yields), until)

    def arguments(self, kind: ArgKind) -> list[LoopArg]:
        start = self.token
        return self.together(self.separated(lambda: self.argument(kind)), start)

    def argument(self, kind: ArgKind) -> list[LoopArg]:
        start, names = self.token, self.words()
        self.expect("=")
        if self.accept("["):
            outer = tuple(name for run in self.closed(self.words, "]") for name in run)
        else:
            outer = self.words()
        next = self.name() if self.accept("next") else ""
        buffers = self.integer("1 or 2") if self.accept("buffers") else 1
        if len(names) == 1:
            return [LoopArg(kind, names[0], outer, next, buffers)]
        if len(names) != len(outer):
            raise self.error(f"a run of {len(outer)} names, one for each name outside", start)
        return [
            LoopArg(kind, name, (source,), next, buffers)
            for name, source in zip(names, outer, strict=True)
        ]


class _Head:
    """What graph and program have in common: declarations and results."""

    def __init__(self) -> None:
        self.values: dict[str, list[Value]] = {"input": [], "weight": [], "state": []}
        self.outputs: list[str] = []
        self.feedback: list[tuple[str, str]] = []
        self.until = ""
        self.count = ""

    def declared(self) -> tuple[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]]:
        values = self.values
        return tuple(values["input"]), tuple(values["weight"]), tuple(values["state"])

    def results(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], str]:
        return tuple(self.outputs), tuple(self.feedback), self.until
