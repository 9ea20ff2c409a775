"""memory: a carried value stays in one buffer where nobody can tell the difference.

Before      carried %x = %x.0 next %y buffers 2
After       carried %x = %x.0 next %y
Requires    loops (loop)
Why         Two alternating buffers are always right. One is enough when everything that reads the
            value of this iteration is ordered before what writes the next one, and nothing uses
            the initial value later: then the value's address is a constant. The verifier knows
            whether that holds, so this pass asks it.
"""

from dataclasses import replace

from hotloop.ir.program import Item, Loop, Program
from hotloop.ir.verify import problems
from hotloop.util.remarks import Remark


def memory(program: Program) -> tuple[Program, list[Remark]]:
    remarks: list[Remark] = []
    for path in _loops(program.body):
        for a, arg in enumerate(_at(program.body, path).args):
            if arg.buffers == 1:
                continue
            shared = replace(program, body=_share(program.body, path, a))
            found = problems(shared)
            if not found:
                program = shared
                text = "the next value takes the place of the last"
                remarks.append(Remark("memory", "did", f"%{arg.name}", text))
            else:
                text = f"needs two buffers: {found[0]}"
                remarks.append(Remark("memory", "missed", f"%{arg.name}", text))
    return program, remarks


Path = tuple[int, ...]


def _loops(body: tuple[Item, ...], path: Path = ()) -> list[Path]:
    """The place of every loop, outer ones first."""
    found: list[Path] = []
    for i, item in enumerate(body):
        if isinstance(item, Loop):
            found += [(*path, i), *_loops(item.body, (*path, i))]
    return found


def _at(body: tuple[Item, ...], path: Path) -> Loop:
    item = body[path[0]]
    assert isinstance(item, Loop)
    return item if len(path) == 1 else _at(item.body, path[1:])


def _share(body: tuple[Item, ...], path: Path, a: int) -> tuple[Item, ...]:
    """`body` with argument `a` of the loop at `path` in one buffer."""
    first, *rest = path
    item = body[first]
    assert isinstance(item, Loop)
    if rest:
        changed = replace(item, body=_share(item.body, tuple(rest), a))
    else:
        args = list(item.args)
        args[a] = replace(args[a], buffers=1)
        changed = replace(item, args=tuple(args))
    return (*body[:first], changed, *body[first + 1 :])
