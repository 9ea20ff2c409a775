"""No value is read after its memory holds another one.

Memory is used twice where a carried value and its next share a buffer, where a loop starts in the
buffer of an initial value, and where an output takes the place of the input that it feeds. From
there on in program order, nothing may read the old value; and the call that makes the new one may
read the old one only on the rows that it is about to overwrite.
"""

from collections.abc import Iterator, Mapping

from hotloop.ir.order import Path
from hotloop.ir.program import Call, Item, Loop, Program
from hotloop.ir.verify.kernel import in_place_problem
from hotloop.ir.verify.memory import Buffers, Memory
from hotloop.ir.verify.scopes import call_text, loop_text


def lifetime_problems(program: Program, memories: Mapping[Path, Memory]) -> list[str]:
    """Reads of overwritten values, one line each."""
    values = _Values(memories[()])
    values.defined += [value.name for value in program.declared()]
    found = list(_body(program.body, (), values, memories))
    for name in program.outputs:
        found += [f"output %{text}" for text in values.read(name)]
    for name, _ in program.feedback:
        found += [f"feedback %{text}" for text in values.read(name)]
    return found


class _Values:
    """The names of one body so far, and which of them have lost their memory, to whom."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.defined: list[str] = []
        self.overwritten: dict[str, str] = {}

    def read(self, name: str) -> Iterator[str]:
        if name in self.overwritten:
            yield f"{name}: {self.overwritten[name]} has overwritten it"

    def sharing(self, buffers: Buffers) -> list[str]:
        """The names whose value `buffers` may hold."""
        names = (name for name in self.defined if name not in self.overwritten)
        return [name for name in names if self.memory.buffers[name] & buffers]

    def overwrite(self, buffers: Buffers, who: str) -> None:
        self.overwritten.update(dict.fromkeys(self.sharing(buffers), who))


def _body(
    body: tuple[Item, ...], path: Path, values: _Values, memories: Mapping[Path, Memory]
) -> Iterator[str]:
    for k, item in enumerate(body):
        if isinstance(item, Call):
            where, found = call_text(item), _call(item, values)
        else:
            where, found = loop_text(item), _loop(item, (*path, k), values, memories)
        for name in dict.fromkeys(item.uses):
            for text in values.read(name):
                yield f"{where}: reads %{text}"
        for text in found:
            yield f"{where}: {text}"


def _call(call: Call, values: _Values) -> Iterator[str]:
    memory = values.memory
    for name, result in zip(call.results, call.kernel.results, strict=True):
        buffers = memory.buffers[name]
        if buffers != memory.own(name):
            for old in values.sharing(buffers):
                for arg, param in zip(call.args, call.kernel.params, strict=True):
                    if arg == old and (why := in_place_problem(call.kernel, param.name, result)):
                        yield f"writes %{name} over %{old}, but {why}"
            values.overwrite(buffers, call_text(call))
    values.defined += call.results


def _loop(
    loop: Loop, path: Path, values: _Values, memories: Mapping[Path, Memory]
) -> Iterator[str]:
    inner = _Values(memories[path])
    inner.defined += [arg.name for arg in loop.args]
    yield from _body(loop.body, path, inner, memories)
    for arg in loop.args:
        if arg.kind == "carried":
            for text in inner.read(arg.next):
                yield f"carries %{text}"
            values.overwrite(values.memory.buffers[arg.outer[0]], loop_text(loop))
    for name, _ in loop.yields:
        for text in inner.read(name):
            yield f"yields %{text}"
    values.defined += loop.defines
