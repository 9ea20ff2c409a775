"""Print a graph, a kernel or a program as text that `hotloop.ir.parse` reads back.

The grammar is that of `hotloop.ir.graph` and `hotloop.ir.program`, and

    types      f32[1,576]
    constants  constant %layer.window.{0..5} : i32[] = 512
    ops        %q = rope(%k, %pos, %table) {head_dim=64, pairing="half"} : f32[1,576]
    stages     stage %s1 after %entry, %s0 prefetch { … }        stage %s1 barrier { … }
    loops      loop %i < 30 { … }                                loop %t until %done { … }
               %n = rms_norm(%x, %w) {eps=%eps} : f32[1,576]     eps is a parameter
    variants   q4_0|q8_0[576,576]                  one format or the other, by the iteration
    arguments  carried %x = %x.0 next %y buffers 2
               stacked %w = %blk.{0..29}.w         one argument, a name for each iteration
               stacked %w = [%a, %b.{1..7}]        the same where one word does not say it
               invariant %w.{0..3} = %b.{1..4}     four arguments
    families   see `hotloop.ir.names`; entries joined by commas advance together

Line breaks are as good as spaces, and `#` starts a comment.
"""

import json
from collections.abc import Callable, Iterable, Sequence

from hotloop.ir.graph import Attr, Graph, Op, Value
from hotloop.ir.names import Row, blocks, compress
from hotloop.ir.program import Call, Item, Kernel, Loop, LoopArg, Part, Program, Stage

#: Lines are broken to stay within this, indentation not counted.
_WIDTH = 92
#: So for ops, which stand deepest.
_OP_WIDTH = 90


def text(thing: Graph | Kernel | Program) -> str:
    """Its text, ending with a newline."""
    if isinstance(thing, Graph):
        return print_graph(thing)
    if isinstance(thing, Kernel):
        return print_kernel(thing)
    return print_program(thing)


def print_graph(graph: Graph) -> str:
    ops = [line for op in graph.ops for line in _op(op)]
    body = _declarations(graph) + ops + _results(graph)
    return _join(_block(f"graph @{graph.name}", body))


def print_kernel(kernel: Kernel) -> str:
    return _join(_kernel(kernel))


def print_program(program: Program) -> str:
    body = _declarations(program) + _constants(program)
    for kernel in program.kernels:
        body += _kernel(kernel)
    body += _items(program.body) + _results(program)
    return _join(_block(f"program @{program.name} launch={program.launch}", body))


def _join(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _block(head: str, body: Iterable[str]) -> list[str]:
    return [head + " {", *("  " + line for line in body), "}"]


def _fill(head: str, items: Sequence[str], tail: str) -> list[str]:
    """`head`, the items with commas between, `tail`; broken into lines where too long."""
    words = [item + ("," if k + 1 < len(items) else tail) for k, item in enumerate(items)]
    if not words:
        return [head + tail]
    lines = [head + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append("    " + word)
        else:
            lines[-1] += " " + word
    return lines


# Declarations and results ------------------------------------------------------------------------


def _declarations(thing: Graph | Program) -> list[str]:
    return (
        _declare("input", thing.inputs)
        + _declare("weight", thing.weights)
        + _declare("state", thing.states)
    )


def _declare(keyword: str, values: tuple[Value, ...]) -> list[str]:
    rows = [Row((value.name,), value.type) for value in values]
    return _rows(keyword, rows, lambda row: f"%{row.names[0]} : {row.rest}")


def _constants(program: Program) -> list[str]:
    rows = [
        Row((constant.value.name,), f"{constant.value.type} = {_attr(constant.number)}")
        for constant in program.constants
    ]
    return _rows("constant", rows, lambda row: f"%{row.names[0]} : {row.rest}")


def _rows(keyword: str, rows: Sequence[Row], show: Callable[[Row], str]) -> list[str]:
    lines = []
    for block in blocks(rows):
        entries = [show(row) for row in block]
        start, more = keyword + " ", " " * (len(keyword) + 1)
        for k, entry in enumerate(entries):
            comma = "," if k + 1 < len(entries) else ""
            lines.append((more if k else start) + entry + comma)
    return lines


def _results(thing: Graph | Program) -> list[str]:
    lines = _fill("output ", _names(thing.outputs), "") if thing.outputs else []
    lines += [f"feedback %{source} -> %{target}" for source, target in thing.feedback]
    if thing.until:
        lines.append(f"until %{thing.until}")
    if thing.count:
        lines.append(f"count %{thing.count}")
    return lines


# Ops and kernels ---------------------------------------------------------------------------------


def _names(names: Sequence[str]) -> list[str]:
    return [f"%{word}" for word in compress(names)]


def _attr(value: Attr) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _op(op: Op, head: str = "") -> list[str]:
    """The op after `head`; what follows the operands on a line of its own where too long."""
    line = f"{op.name}({', '.join(f'%{name}' for name in op.operands)})"
    attrs = [(name, _attr(value)) for name, value in op.attrs]
    attrs += [(attr, f"%{name}") for attr, name in op.scalars]
    rest = " {" + ", ".join(f"{name}={value}" for name, value in attrs) + "}" if attrs else ""
    if op.result:
        line = f"%{op.result.name} = {line}"
        rest += f" : {op.result.type}"
    if len(head + line + rest) <= _OP_WIDTH:
        return [head + line + rest]
    return [head + line, f"   {rest}"]


def _kernel(kernel: Kernel) -> list[str]:
    results = ", ".join(f"%{name}" for name in kernel.results)
    params = [str(param) for param in kernel.params]
    head = _fill(f"kernel @{kernel.name}(", params, f") -> ({results})")
    body = [line for stage in kernel.stages for line in _stage(stage)]
    return head[:-1] + _block(head[-1], body)


def _stage(stage: Stage) -> list[str]:
    head = f"stage %{stage.name}"
    if stage.after:
        head += " after " + ", ".join(f"%{name}" for name in stage.after)
    head += " barrier" * stage.barrier + " prefetch" * stage.prefetch
    body = [line for op in stage.each for line in _op(op, "each ")]
    for part in stage.parts:
        body += _part(part)
    return _block(head, body)


def _part(part: Part) -> list[str]:
    return _block(f"part tile {part.tile}", [line for op in part.ops for line in _op(op)])


# Calls and loops ---------------------------------------------------------------------------------


def _items(items: tuple[Item, ...]) -> list[str]:
    lines: list[str] = []
    for item in items:
        lines += _call(item) if isinstance(item, Call) else _loop(item)
    return lines


def _call(call: Call) -> list[str]:
    results = ", ".join(f"%{name}" for name in call.results)
    head = f"{results} = " if results else ""
    return _fill(f"{head}call @{call.kernel.name}(", _names(call.args), ")")


def _loop(loop: Loop) -> list[str]:
    head = f"loop %{loop.index}"
    if loop.trip is not None:
        head += f" < {loop.trip}"
    if loop.until:
        head += f" until %{loop.until}"
    body = _arguments(loop.args) + _items(loop.body)
    body += [f"yield %{inner} -> %{outer}" for inner, outer in loop.yields]
    return _block(head, body)


def _arguments(args: tuple[LoopArg, ...]) -> list[str]:
    lines: list[str] = []
    plain: list[Row] = []  # arguments of one kind with one outside name, which may be families

    def flush() -> None:
        if plain:
            keyword = str(plain[0].rest)
            lines.extend(_rows(keyword, plain, lambda row: f"%{row.names[0]} = %{row.names[1]}"))
            plain.clear()

    for arg in args:
        if len(arg.outer) == 1 and not arg.next and arg.buffers == 1:
            if plain and plain[0].rest != arg.kind:
                flush()
            plain.append(Row((arg.name, arg.outer[0]), arg.kind))
        else:
            flush()
            lines += _argument(arg)
    flush()
    return lines


def _argument(arg: LoopArg) -> list[str]:
    tail = f" next %{arg.next}" if arg.next else ""
    tail += f" buffers {arg.buffers}" if arg.next or arg.buffers != 1 else ""
    words = _names(arg.outer)
    if len(words) == 1:
        return [f"{arg.kind} %{arg.name} = {words[0]}{tail}"]
    return _fill(f"{arg.kind} %{arg.name} = [", words, f"]{tail}")
