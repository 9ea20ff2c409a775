"""Code generation: a program becomes an LLVM module of tile, kernel and launch functions.

    i64 launch(context, team, tid, args)

runs the whole program, or (in a program whose items are launches of their own) one kernel on what
`args` says: the addresses of its arguments, the numbers of formats, the addresses of its results. A
loop of the program is a loop in `launch`, so the size of the code does not grow with the number of
layers, and nothing but the loop's index tells one layer from the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from hotloop.backends.cpu import shared
from hotloop.backends.cpu.kernel_code import CallSite, KernelCode, format_number, variants
from hotloop.backends.cpu.places import Region, Scope, Work, constant_words, place_constants
from hotloop.backends.cpu.profile import Event
from hotloop.backends.cpu.sync import Sync, define_sync, word
from hotloop.ir.program import Call, Item, Kernel, Loop, LoopArg, Program, calls
from hotloop.ir.types import Format, TensorType
from hotloop.lang import (
    Module,
    Pointer,
    Target,
    Type,
    Value,
    Var,
    call,
    constant,
    current,
    function,
    i32,
    i64,
    if_,
    loop,
    null,
    ptr,
    ret,
    u8,
    while_,
)

LAUNCH = (("context", ptr), ("team", ptr), ("tid", i64), ("args", ptr))


CONSTANTS = -1
"""The region of constants, which is in the code, not in the context."""


@dataclass(frozen=True)
class Address:
    """Where a value lives in the current iteration: a region's base + offset + shift, in bytes.

    `format` is that of a weight, by its number (`format_number`) where it differs by iteration.
    """

    region: int
    offset: int
    shift: Value | None = None
    format: Format | Value | None = None


def generate(
    program: Program,
    weights: Region,
    states: Region,
    work: Work,
    target: Target,
    *,
    profiled: bool = False,
) -> Module:
    """The code of `program`, whose values live where the regions say.

    `profiled` code writes an event for each pass through a stage (`profile`).
    """
    module = Module(program.name, target)
    sync = define_sync(module)
    kernels = KernelCode(module, sync, work, profiled)
    if program.launch == "program":
        _ProgramLaunch(module, sync, kernels, weights, states, work).define(program)
        return module
    first = 1
    for kernel in program.kernels:
        _define_item_launch(module, kernels, kernel, first)
        first += len(kernel.stages)
    return module


def launch_names(program: Program) -> tuple[str, ...]:
    """The functions that run the program, in order."""
    if program.launch == "program":
        return ("launch",)
    return tuple(item_launch(item.kernel) for item in calls(program.body))


def stage_labels(program: Program) -> tuple[str, ...]:
    """For each stage number, from 1 on, what the watchdog calls it."""
    whole = program.launch == "program"
    kernels = [item.kernel for item in calls(program.body)] if whole else program.kernels
    return tuple(f"@{kernel.name} %{stage.name}" for kernel in kernels for stage in kernel.stages)


def item_launch(kernel: Kernel) -> str:
    return f"launch_{kernel.name}"


def chosen_formats(call: Call, types: Mapping[str, TensorType]) -> list[int]:
    """What a launch of one kernel is told of its arguments with variants: their formats' numbers.

    They stand between the addresses of its arguments and those of its results.
    """
    params = [param.name for param in call.kernel.params]
    args = [call.args[params.index(name)] for name in variants(call.kernel)]
    return [format_number(types[name].format) for name in args]


def _define_item_launch(module: Module, kernels: KernelCode, kernel: Kernel, first: int) -> None:
    """A launch of one kernel: nothing precedes it, and all its stages run for the first time."""
    with function(module, item_launch(kernel), LAUNCH, i64, exported=True) as arguments:
        context, team, tid, args = arguments
        assert isinstance(args, Pointer)
        zero = constant(0, i64)
        site = CallSite(
            epoch=zero,
            sync=first_sync(team),
            ready=constant(shared.BARRIER, i64),
            target=zero,
            first=first,
        )
        params, formats, results = len(kernel.params), len(variants(kernel)), len(kernel.results)
        given: list[Value] = [args.load_pointer(i) for i in range(params)]
        given += [args.cast(i64).load(params + i) for i in range(formats)]
        given += [args.load_pointer(params + formats + i) for i in range(results)]
        kernels.call(kernel, (context, team, tid), site, given)
        ret(0)


def first_sync(team: Value) -> Value:
    """Offset in the team's memory of the counters of a launch's first stage."""
    return word(team, shared.THREADS).load() * shared.LINE + shared.THREAD


class _ProgramLaunch:
    """Traces the launch of a whole program."""

    def __init__(
        self,
        module: Module,
        sync: Sync,
        kernels: KernelCode,
        weights: Region,
        states: Region,
        work: Work,
    ) -> None:
        self.module = module
        self.sync = sync
        self.kernels = kernels
        self.weights = weights
        self.states = states
        self.work = work
        self.epochs: dict[tuple[Scope, int], Var] = {}
        self.firsts: dict[tuple[Scope, int], int] = {}

    def define(self, program: Program) -> None:
        with function(self.module, "launch", LAUNCH, i64, exported=True) as arguments:
            self.context, self.team, self.tid, _ = arguments
            self.first_sync = first_sync(self.team)
            self.stage_bytes = (word(self.team, shared.THREADS).load() + 1) * shared.LINE
            # What precedes the next call is complete when the counter at offset `ready` of the
            # team's memory reaches `target`; before the first call, any counter has reached 0.
            self.ready = Var(constant(shared.BARRIER, i64))
            self.target = Var(constant(0, i64))
            self._number(program.body, (), 0)
            names = {
                value.name: Address(shared.WORK, self.work.places[((), value.name)])
                for value in program.inputs
            }
            constants = tuple(constant.value for constant in program.constants)
            for region, places, values in (
                (shared.WEIGHTS, self.weights, program.weights),
                (shared.STATE, self.states, program.states),
                (CONSTANTS, place_constants(program), constants),
            ):
                for value in values:
                    at = places.offsets[value.name]
                    names[value.name] = Address(region, at, format=value.type.format)
            self.constants = null()
            if program.constants:
                words = constant_words(program).tolist()
                self.constants = _table(self.module, "constants", i32, words).cast(u8)
            self._items(program.body, (), names)
            ret(0)

    def _number(self, body: tuple[Item, ...], scope: Scope, first: int) -> int:
        """Give each call its stages' numbers, and an epoch that counts from 0 in every launch."""
        for i, item in enumerate(body):
            if isinstance(item, Loop):
                first = self._number(item.body, (*scope, i), first)
            else:
                self.firsts[(scope, i)] = first
                self.epochs[(scope, i)] = Var(constant(0, i64))
                first += len(item.kernel.stages)
        return first

    def _items(self, body: tuple[Item, ...], scope: Scope, names: dict[str, Address]) -> None:
        for i, item in enumerate(body):
            if isinstance(item, Call):
                for name in item.results:
                    names.setdefault(name, self._result(scope, name))
                self._call(item, (scope, i), names)
            else:
                self._loop(item, (*scope, i), names)
                names |= self._yielded(item, (*scope, i), names)

    def _yielded(
        self, item: Loop, scope: Scope, outside: Mapping[str, Address]
    ) -> dict[str, Address]:
        """Where a loop left its results: a carried one where one more iteration would read it."""
        after = self._arguments(item, scope, outside, constant(item.trip or 0, i64))
        carried = {arg.next: after[arg.name] for arg in item.args if arg.kind == "carried"}
        return {
            outer: carried[inner] if inner in carried else self._result(scope, inner)
            for inner, outer in item.yields
        }

    def _result(self, scope: Scope, name: str) -> Address:
        return Address(shared.WORK, self.work.places[(scope, name)])

    def _call(self, item: Call, place: tuple[Scope, int], names: Mapping[str, Address]) -> None:
        kernel, epoch, first = item.kernel, self.epochs[place], self.firsts[place]
        sync = self.first_sync + self.stage_bytes * first
        site = CallSite(epoch.get(), sync, self.ready.get(), self.target.get(), first + 1)
        arguments: list[Value] = [self._pointer(names[name]) for name in item.args]
        params = [param.name for param in kernel.params]
        for name in variants(kernel):
            arguments.append(_number(names[item.args[params.index(name)]].format))
        arguments += [self._pointer(names[name]) for name in item.results]
        self.kernels.call(kernel, (self.context, self.team, self.tid), site, arguments)
        epoch.set(epoch + 1)
        last = self.kernels.exit_index(kernel)
        self.ready.set(sync + self.stage_bytes * last + shared.DONE)
        self.target.set(epoch * self.kernels.tiles(kernel, kernel.stages[last]))

    def _pointer(self, address: Address) -> Pointer:
        if address.region == CONSTANTS:
            base = self.constants
        else:
            base = word(self.context, 8 * address.region).load_pointer()
        at = base.at(address.offset)
        return at if address.shift is None else at.at(address.shift)

    def _loop(self, item: Loop, scope: Scope, outside: Mapping[str, Address]) -> None:
        if item.trip is not None:
            for i in loop(item.trip):
                self._items(item.body, scope, self._arguments(item, scope, outside, i))
            return
        index, more = Var(constant(0, i64)), Var(constant(1, i32))
        for _ in while_(lambda: more.differs(0)):
            names = self._arguments(item, scope, outside, index.get())
            self._items(item.body, scope, names)
            # The flag goes from 0 to 1 once, in the last iteration. A thread that looks late may
            # see it early and leave, but only when all that it would have skipped is complete.
            assert isinstance(self.team, Pointer)
            counter = self.team.at(self.ready)
            zero = constant(0, i64)
            wait = [counter, self.target, self.team, self.tid, zero, index]
            event = Event()
            if self.kernels.profiled:
                event = Event.begin(self.context, self.tid, 0, index)
            event.stamp("start", "asked")
            with if_(call(self.sync.wait, wait).differs(0)):
                ret(1)
            event.stamp("waited", "each", "end")
            event.put("tiles", 0)
            flag = self._pointer(names[item.until]).cast(i32)
            more.set(flag.load().equals(0).to(i32))
            index.set(index + 1)

    def _arguments(
        self, item: Loop, scope: Scope, outside: Mapping[str, Address], i: Value
    ) -> dict[str, Address]:
        """The names inside the loop, for iteration `i`."""
        names: dict[str, Address] = {}
        for arg in item.args:
            first = outside[arg.outer[0]]
            if arg.buffers == 2:
                second = Address(shared.WORK, self.work.second[(scope, arg.name)])
                names[arg.name] = _alternate(first, second, i)
                names[arg.next] = _alternate(first, second, i + 1)
            elif len(arg.outer) == 1:
                names[arg.name] = first
            else:
                names[arg.name] = self._stacked(arg, outside, i)
        return names

    def _stacked(self, arg: LoopArg, outside: Mapping[str, Address], i: Value) -> Address:
        """The first buffer plus i strides.

        Where the buffers do not lie at equal distances, their offsets are a table in the code.
        """
        first, *rest = [outside[name] for name in arg.outer]
        assert all(a.shift is None and a.region == first.region for a in (first, *rest))
        shifts = [0, *(other.offset - first.offset for other in rest)]
        format = first.format
        if arg.kind == "variant":
            format = self._in_turn([_known(address.format) for address in (first, *rest)], i)
        return Address(first.region, first.offset, self._in_turn(shifts, i), format)

    def _in_turn(self, numbers: list[int], i: Value) -> Value:
        """Number i: a multiple of i where the numbers are that, else from a table in the code."""
        step = numbers[1] - numbers[0]
        if numbers == [k * step for k in range(len(numbers))]:
            return i * step
        return _table(self.module, "in.turn", i64, numbers).load(i)


def _table(module: Module, name: str, element: Type, numbers: list[int]) -> Pointer:
    type = ir.ArrayType(element.llvm, len(numbers))
    table = ir.GlobalVariable(module.llvm, type, module.llvm.get_unique_name(name))
    table.initializer = ir.Constant(type, numbers)
    table.global_constant, table.linkage = True, "internal"
    return Pointer(current().builder.bitcast(table, ptr.llvm), element)


def _known(format: Format | Value | None) -> int:
    assert isinstance(format, Format)
    return format_number(format)


def _number(format: Format | Value | None) -> Value:
    return format if isinstance(format, Value) else constant(_known(format), i64)


def _alternate(first: Address, second: Address, i: Value) -> Address:
    """`first` in even iterations, `second` in odd ones."""
    assert first.region == second.region
    odd = i & 1
    shift = odd * (second.offset - first.offset)
    if first.shift is not None:
        shift = shift + (1 - odd) * first.shift
    if second.shift is not None:
        shift = shift + odd * second.shift
    return Address(first.region, first.offset, shift)
