"""Rules of names: each is defined once, before its uses, with the type and the rights they need.

A loop is a closed scope: inside there are its arguments and what its body defines. Every name has a
*kind*, which says whether it may be written: only a state may be written in place, and it must be
passed on as a state at every level.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hotloop.ir.graph import Graph
from hotloop.ir.names import NAME
from hotloop.ir.program import Call, Item, Loop, LoopArg, Program, argument_type
from hotloop.ir.types import TensorType, tensor

FLAG = tensor("i32", 1)
SCALARS = tensor("i32"), tensor("f32")


@dataclass
class Scope:
    """The names in one body: what type they have, and what kind of thing they are."""

    types: dict[str, TensorType] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def define(self, name: str, type: TensorType, kind: str) -> str:
        """Add a name; what is wrong with it, or ""."""
        if not NAME.fullmatch(name):
            return f"%{name} is not a name that IR text can hold"
        if name in self.types:
            return f"%{name} is already defined"
        self.types[name] = type
        self.kinds[name] = kind
        return ""

    def made(self, name: str) -> bool:
        """Whether an item of this body defines `name`."""
        return self.kinds.get(name) in ("result", "yield")


#: Kinds of names with the article that a message needs.
_ARTICLES = {
    "input": "an input",
    "weight": "a weight",
    "state": "a state",
    "constant": "a constant",
    "result": "a call's result",
    "yield": "a loop's result",
    "invariant": "an invariant argument",
    "stacked": "a stacked argument",
    "variant": "a variant argument",
    "carried": "a carried argument",
}


#: What a carried value must not start in, since the loop writes there.
_UNWRITABLE = ("weight", "state", "constant", "invariant", "stacked", "variant")


def call_text(call: Call) -> str:
    """A call as messages name it."""
    results = ", ".join(f"%{name}" for name in call.results)
    return f"{results} = call @{call.kernel.name}" if results else f"call @{call.kernel.name}"


def loop_text(loop: Loop) -> str:
    return f"loop %{loop.index}"


def scope_problems(program: Program) -> list[str]:
    """Everything wrong with the names of `program`, one line each."""
    return list(dict.fromkeys(_program(program)))


def _program(program: Program) -> Iterator[str]:
    scope = Scope()
    yield from declaration_problems(program, scope)
    yield from _constants(program, scope)
    kernels = [kernel.name for kernel in program.kernels]
    for name in dict.fromkeys(name for name in kernels if kernels.count(name) > 1):
        yield f"two kernels are named @{name}"
    yield from _body(program.body, scope, ())
    yield from result_problems(program, scope)


def _constants(program: Program, scope: Scope) -> Iterator[str]:
    """Add the constants to `scope`; yield what is wrong with them."""
    for constant in program.constants:
        name, type, number = constant.value.name, constant.value.type, constant.number
        where = f"constant %{name}"
        if text := scope.define(name, type, "constant"):
            yield f"constant {text}"
        if type not in SCALARS:
            yield f"{where}: is {type}, expected {' or '.join(map(str, SCALARS))}"
        elif type == SCALARS[0] and not (isinstance(number, int) and abs(number) < 2**31):
            yield f"{where}: {number} is no {type}"


def declaration_problems(thing: Program | Graph, scope: Scope) -> Iterator[str]:
    """Add what is declared to `scope`; yield what is wrong with it."""
    for kind, values in (
        ("input", thing.inputs),
        ("weight", thing.weights),
        ("state", thing.states),
    ):
        for value in values:
            if text := scope.define(value.name, value.type, kind):
                yield f"{kind} {text}"


def result_problems(thing: Program | Graph, scope: Scope) -> Iterator[str]:
    """What is wrong with outputs, feedback, until and count."""
    for name in dict.fromkeys(thing.outputs):
        if name not in scope.types:
            yield f"output %{name}: is not defined"
        if thing.outputs.count(name) > 1:
            yield f"output %{name}: is named twice"
    inputs = {value.name for value in thing.inputs}
    fed: set[str] = set()
    for source, target in thing.feedback:
        where = f"feedback %{source} -> %{target}"
        if not scope.made(source):
            yield f"{where}: %{source} is not computed"
        elif target not in inputs:
            yield f"{where}: %{target} is not an input"
        elif target in fed:
            yield f"{where}: %{target} is already fed"
        elif scope.types[source] != scope.types[target]:
            yield f"{where}: {scope.types[source]} does not fit {scope.types[target]}"
        fed.add(target)
    for word, name in (("until", thing.until), ("count", thing.count)):
        if name and name not in thing.outputs:
            yield f"{word} %{name}: is not an output"
        elif name and scope.types.get(name, FLAG) != FLAG:
            yield f"{word} %{name}: is {scope.types[name]}, expected {FLAG}"


def _body(body: tuple[Item, ...], scope: Scope, around: tuple[str, ...]) -> Iterator[str]:
    """`around` has the indices of the loops around the body, outermost first."""
    for item in body:
        if isinstance(item, Call):
            where, found = call_text(item), _call(item, scope)
        else:
            where, found = loop_text(item), _loop(item, scope, around)
        for text in found:
            yield f"{where}: {text}"


# Calls -------------------------------------------------------------------------------------------


def _call(call: Call, scope: Scope) -> Iterator[str]:
    kernel = call.kernel
    if len(call.args) != len(kernel.params):
        yield f"{len(call.args)} arguments for {len(kernel.params)} parameters"
    for name, param in zip(call.args, kernel.params, strict=False):
        if name not in scope.types:
            yield f"%{name} is not defined here"
        elif not scope.types[name].fits(param.type):
            yield f"%{name} is {scope.types[name]}, but parameter %{param.name} is {param.type}"
        elif param.name in kernel.written:
            kind = scope.kinds[name]
            if kind != "state":
                yield f"writes %{name} in place, which is {_ARTICLES[kind]}, not a state"
            if call.args.count(name) > 1:
                yield f"writes %{name}, which is also another argument"
    if len(call.results) != len(kernel.results):
        yield f"{len(call.results)} names for {len(kernel.results)} results"
    for name, result in zip(call.results, kernel.results, strict=False):
        type = kernel.types.get(result)
        if type and (text := scope.define(name, type, "result")):
            yield text


# Loops -------------------------------------------------------------------------------------------


def _loop(loop: Loop, scope: Scope, around: tuple[str, ...]) -> Iterator[str]:
    if loop.index in around:
        yield "a loop around it has the same index"
    if not loop.body:
        yield "the body is empty"
    if loop.trip is not None and loop.trip < 1:
        yield f"{loop.trip} iterations; a loop runs at least once"
    if loop.trip is None and not loop.until:
        yield "neither a number of iterations nor `until` says when to stop"
    if loop.trip is not None and loop.until:
        yield "both a number of iterations and `until` say when to stop"
    inner = Scope()
    for arg in loop.args:
        outside = [name for name in arg.outer if name in scope.types]
        for name in arg.outer:
            if name not in scope.types:
                yield f"%{name} is not defined here"
        for text in _argument(loop, arg, scope):
            yield f"{arg.kind} %{arg.name}: {text}"
        if outside:
            type = argument_type(replace(arg, outer=tuple(outside)), scope.types)
            if text := inner.define(arg.name, type, arg.kind):
                yield text
    yield from _shared_arguments(loop)
    yield from _body(loop.body, inner, (*around, loop.index))
    yield from _carried(loop, inner)
    if loop.until and not inner.made(loop.until):
        yield f"until %{loop.until}: the body does not define it"
    elif loop.until and inner.types[loop.until] != FLAG:
        yield f"until %{loop.until}: is {inner.types[loop.until]}, expected {FLAG}"
    yielded: set[str] = set()
    for name, outer in loop.yields:
        if not inner.made(name):
            yield f"yield %{name}: the body does not define it"
        elif name in yielded:
            yield f"yield %{name}: is yielded twice"
        elif text := scope.define(outer, inner.types[name], "yield"):
            yield text
        yielded.add(name)


def _argument(loop: Loop, arg: LoopArg, scope: Scope) -> Iterator[str]:
    """What is wrong with one argument, seen from outside."""
    count, trip = len(arg.outer), loop.trip
    if arg.kind in ("invariant", "carried") or (arg.kind == "state" and count < 2):
        if count != 1:
            yield f"{count} names outside, expected 1"
    elif trip is None:
        yield f"{count} names, but the number of iterations is open"
    elif count != trip:
        yield f"{count} names for {trip} iterations"
    if len(set(arg.outer)) < count and arg.kind == "state":
        yield "a name occurs twice"
    types = {scope.types[name] for name in arg.outer if name in scope.types}
    if arg.kind == "variant":
        yield from _variant(types)
    elif len(types) > 1:
        yield f"mixes {' and '.join(sorted(map(str, types)))}"
    for name in arg.outer:
        kind = scope.kinds.get(name, "")
        if arg.kind == "state" and kind not in ("", "state"):
            yield f"%{name} is {_ARTICLES[kind]}, not a state"
        if arg.kind == "variant" and kind not in ("", "weight", "invariant"):
            yield f"%{name} is {_ARTICLES[kind]}, not a weight"
        if arg.kind == "carried" and kind in _UNWRITABLE:
            yield f"starts in %{name}, which is {_ARTICLES[kind]} and must not be overwritten"
    if arg.kind == "carried" and arg.buffers not in (1, 2):
        yield f"{arg.buffers} buffers, expected 1 or 2"
    if arg.kind != "carried" and (arg.next or arg.buffers != 1):
        yield "only a carried argument has a next value and buffers"


def _variant(types: set[TensorType]) -> Iterator[str]:
    """What is wrong with the outside types of a variant."""
    if len(types) == 1:
        yield f"all are {types.pop()}; a weight in one format is stacked"
    if len({type.shape for type in types}) > 1:
        yield f"mixes {' and '.join(sorted(map(str, types)))}"
    for type in sorted(types, key=str):
        if type.format.variants:
            yield f"takes {type}, which is a variant already"


def _shared_arguments(loop: Loop) -> Iterator[str]:
    """What one argument writes must not be read through another."""
    seen: dict[str, LoopArg] = {}
    for arg in loop.args:
        for name in dict.fromkeys(arg.outer):
            other = seen.setdefault(name, arg)
            if other is not arg and {"state", "carried"} & {arg.kind, other.kind}:
                yield f"%{name} is {other.kind} %{other.name} and also {arg.kind} %{arg.name}"


def _carried(loop: Loop, inner: Scope) -> Iterator[str]:
    """What is wrong with the carried arguments, seen from inside."""
    taken: dict[str, str] = {}
    for arg in loop.args:
        if arg.kind != "carried":
            continue
        where = f"carried %{arg.name}"
        if inner.kinds.get(arg.next) != "result":
            yield f"{where}: next %{arg.next} is not the result of a call in the body"
        elif arg.name in inner.types and inner.types[arg.next] != inner.types[arg.name]:
            types = f"{inner.types[arg.name]}, but its next %{arg.next} is {inner.types[arg.next]}"
            yield f"{where}: is {types}"
        elif arg.next in taken:
            yield f"{where}: next %{arg.next} is also the next of %{taken[arg.next]}"
        taken[arg.next] = arg.name
