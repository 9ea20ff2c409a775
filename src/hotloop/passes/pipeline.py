"""pipeline: fewer, cheaper synchronisations, and weights on their way before they are needed.

Before      stage %s0 after %entry { part tile 1 { %a = rms_norm(%x, %w) } }
            stage %s1 barrier { part tile 8 { %g = linear(%a, %gate) } }
            stage %s2 barrier { part tile 8 { %u = linear(%a, %up) } }
            stage %s3 barrier { part tile 8 { %h = swiglu(%g, %u) } }
After       stage %s0 after %entry prefetch {
              each %a = rms_norm(%x, %w)
              part tile 8 { %g = linear(%a, %gate)  %u = linear(%a, %up)  %h = swiglu(%g, %u) }
            }
Requires    kernels of one op per stage (fuse)
Why         A thread that has computed a tile can go on with that tile: no synchronisation where
            the same thread produces and consumes. What is cheap and needed by all, each thread
            computes for itself. What is left waits for exactly the stages that it reads from, and
            a thread that waits has already asked for the weights of its next tile, across the
            boundaries of stages, layers and tokens: they depend on no activation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import lcm

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS, row_count
from hotloop.ir.program import ENTRY, Kernel, Part, Program, Stage, map_kernels
from hotloop.util.remarks import Remark

#: What costs a thread less for a token than waiting for another that computes it.
_CHEAP = ("rms_norm", "layer_norm", "gather", "quantise", "combine", "route", "route_weights")


def pipeline(program: Program) -> tuple[Program, list[Remark]]:
    remarks: list[Remark] = []

    def change(kernel: Kernel) -> Kernel:
        stages = _edges(kernel, _distinct(kernel, _merge(kernel)))
        text = f"{len(kernel.stages)} stages became {len(stages)}"
        remarks.append(Remark("pipeline", "did", f"@{kernel.name}", text))
        return Kernel.of(kernel.name, kernel.params, kernel.results, stages)

    return map_kernels(program, change), remarks


@dataclass
class _Draft:
    """A stage in the making."""

    each: list[Op] = field(default_factory=list)
    parts: list[list[Op]] = field(default_factory=list)

    def part_of(self, name: str) -> list[Op] | None:
        """The part that makes the value."""
        return next((p for p in self.parts if any(_makes(op, name) for op in p)), None)

    def touches(self, op: Op) -> bool:
        """Whether `op` reads or writes state that the stage writes, or writes what it reads."""
        writes = {op.operands[i] for i in OPS[op.name].writes}
        for part in self.parts:
            for other in part:
                theirs = {other.operands[i] for i in OPS[other.name].writes}
                if theirs & set(op.operands) or writes & set(other.operands):
                    return True
        return False


def _makes(op: Op, name: str) -> bool:
    return op.result is not None and op.result.name == name


def _merge(kernel: Kernel) -> list[_Draft]:
    """Put each op into the last stage where nothing that it needs is still being made."""
    drafts = [_Draft()]
    private: dict[str, Op] = {}  # made by every thread for itself, wherever it is needed
    for op in kernel.ops:
        if _is_private(kernel, op):
            if any(drafts[-1].part_of(name) for name in _sources(op, private)):
                drafts.append(_Draft())
            assert op.result is not None
            private[op.result.name] = op
            continue
        host = _host_part(kernel, drafts[-1], op, private)
        if host is None:
            drafts.append(_Draft())
            host = []
            drafts[-1].parts.append(host)
        host.append(op)
        _compute_each(drafts[-1], op, private)
    return [draft for draft in drafts if draft.parts]


def _is_private(kernel: Kernel, op: Op) -> bool:
    """Cheap, needed as a whole by every tile that follows, and of no use outside the kernel."""
    if op.name not in _CHEAP or op.result is None:
        return False
    return op.result.type.shape[0] == 1 and op.result.name not in kernel.results


def _sources(op: Op, private: dict[str, Op]) -> set[str]:
    """The values `op` reads, with private ones replaced by what those are made from."""
    names: set[str] = set()
    for name in op.operands:
        names |= _sources(private[name], private) if name in private else {name}
    return names


def _host_part(kernel: Kernel, draft: _Draft, op: Op, private: dict[str, Op]) -> list[Op] | None:
    """The part of this stage that `op` can join (a new one, if it needs none of them).

    None where the op must wait for a later stage.
    """
    definition, kind = OPS[op.name], _kind(kernel, op)
    joined: list[list[Op]] = []
    for i, name in enumerate(op.operands):
        if name in private:
            if any(draft.part_of(source) for source in _sources(private[name], private)):
                return None
            continue
        part = draft.part_of(name)
        if part is None:
            continue
        alike = _kind(kernel, part[0]) == kind
        aligned = i in definition.aligned or kind in ("tokens", "one")
        if not (alike and aligned and kind in ("features", "tokens", "one")):
            return None
        if not any(part is other for other in joined):
            joined.append(part)
    if not joined and definition.rows == "one":
        joined = [part for part in draft.parts if _kind(kernel, part[0]) == "one"][:1]
    if draft.touches(op) and not (joined and definition.rows == "one"):
        return None
    if not joined:
        draft.parts.append([])
        return draft.parts[-1]
    host, *others = joined
    for other in others:
        host += other
        draft.parts = [part for part in draft.parts if part is not other]
    return host


def _kind(kernel: Kernel, op: Op) -> str:
    """What the op's rows are; a single token is a single tile."""
    kind = OPS[op.name].rows
    operands = [kernel.types[name] for name in op.operands]
    single = row_count(op.name, operands, op.result.type if op.result else None) == 1
    return "one" if kind == "tokens" and single else kind


def _compute_each(draft: _Draft, op: Op, private: dict[str, Op]) -> None:
    """Compute the private values that `op` reads in this stage, once."""
    for name in op.operands:
        if name in private and private[name] not in draft.each:
            _compute_each(draft, private[name], private)
            draft.each.append(private[name])


def _distinct(kernel: Kernel, drafts: list[_Draft]) -> list[_Draft]:
    """Each stage names what it computes again: threads keep nothing from one stage to the next."""
    taken: set[str] = set()
    for draft in drafts:
        new: dict[str, str] = {}
        for op in draft.each:
            assert op.result is not None
            name = op.result.name
            again = (f"{name}.{n}" for n in count(2))
            used = taken | kernel.types.keys()
            new[name] = next(n for n in again if n not in used) if name in taken else name
            taken.add(new[name])
        draft.each = [_renamed(op, new) for op in draft.each]
        draft.parts = [[_renamed(op, new) for op in part] for part in draft.parts]
    return drafts


def _renamed(op: Op, new: dict[str, str]) -> Op:
    operands = tuple(new.get(name, name) for name in op.operands)
    result = op.result and replace(op.result, name=new.get(op.result.name, op.result.name))
    return replace(op, operands=operands, result=result)


def _edges(kernel: Kernel, drafts: Sequence[_Draft]) -> tuple[Stage, ...]:
    """Each stage waits for the stages it reads from, less those that another wait implies."""
    made: dict[str, str] = {}  # value or written state → its last stage
    before: dict[str, set[str]] = {ENTRY: set()}  # stage → everything that precedes it
    stages: list[Stage] = []
    for i, draft in enumerate(drafts):
        name = f"s{i}"
        ops = [*draft.each, *(op for part in draft.parts for op in part)]
        own = {op.result.name for op in ops if op.result}
        reads = {n for op in ops for n in op.operands} - own
        waits = {made.get(n, ENTRY) for n in reads}
        closure = waits.union(*(before[w] for w in waits))
        direct = {w for w in waits if not any(w in before[other] for other in waits)}
        before[name] = closure
        order = [ENTRY, *(stage.name for stage in stages)]
        parts = tuple(Part(tuple(part), _grain(part)) for part in draft.parts)
        after = tuple(w for w in order if w in (direct or {ENTRY}))
        stages.append(Stage(name, after, tuple(draft.each), parts, prefetch=True))
        made.update((n, name) for n in own)
        made.update((op.operands[k], name) for op in ops for k in OPS[op.name].writes)
    return tuple(stages)


def _grain(part: Sequence[Op]) -> int:
    return lcm(*(OPS[op.name].grain(dict(op.attrs)) for op in part))
