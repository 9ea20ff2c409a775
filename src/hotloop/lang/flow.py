"""Control flow of the kernel language: functions, loops, branches.

`for i in loop(n):` runs its Python body once, while tracing, and leaves an LLVM loop behind; so a
kernel reads like the loop it becomes. Values that change from one iteration to the next are `Var`s.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from hotloop.lang.trace import Module, Tracer, current, tracing
from hotloop.lang.types import Type, i32, i64, ptr
from hotloop.lang.values import Operand, Pointer, Value, Var, as_value


@contextmanager
def function(
    module: Module,
    name: str,
    params: Sequence[tuple[str, Type]],
    result: Type | None = None,
    *,
    exported: bool = False,
    noinline: bool = False,
) -> Iterator[list[Value]]:
    """Trace the body of the `with` into a new function; pointers arrive as `Pointer` to bytes.

    The body of a function with a result ends with `ret(value)`.
    """
    llvm = module.declare(name, result, [type for _, type in params])
    llvm.linkage = "external" if exported else "internal"
    llvm.attributes.add("nounwind")
    if noinline:
        llvm.attributes.add("noinline")
    arguments: list[Value] = []
    for argument, (param_name, type) in zip(llvm.args, params, strict=True):
        argument.name = param_name
        arguments.append(Pointer(argument) if type == ptr else Value(argument, type))
    builder = ir.IRBuilder(llvm.append_basic_block("entry"))
    with tracing(Tracer(module, llvm, builder)):
        yield arguments
        if not builder.block.is_terminated:
            if result is None:
                builder.ret_void()
            else:
                builder.unreachable()


def ret(value: Operand | None = None, type: Type = i64) -> None:
    """Return from the traced function; what follows in the same block is not reached."""
    builder = current().builder
    if value is None:
        builder.ret_void()
    else:
        builder.ret(as_value(value, type).llvm)


def loop(stop: Operand, start: Operand = 0, step: int = 1, *, unroll: int = 1) -> Iterator[Value]:
    """`for i in loop(n):` traces a loop of i64 `i` from `start` up to, not including, `stop`.

    It stays as it is (`jit.optimise`), or has `unroll` iterations in one.
    """
    builder = current().builder
    end = as_value(stop, i64)
    index = Var(as_value(start, i64))
    head = builder.append_basic_block("loop")
    body = builder.append_basic_block("body")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch((index < end).llvm, body, after)
    builder.position_at_end(body)
    yield index.get()
    index += step
    back = builder.branch(head)
    if unroll > 1:
        back.set_metadata("llvm.loop", _unrolled(builder.module, unroll))
    builder.position_at_end(after)


def _unrolled(module: ir.Module, times: int) -> ir.MDValue:
    """A loop's metadata that asks for unrolling; LLVM wants a node that holds itself."""
    option = module.add_metadata(["llvm.loop.unroll.count", ir.Constant(i32.llvm, times)])
    node = ir.MDValue(module, [], str(len(module.metadata)))
    node.operands = (node, option)
    return node


def strip(stop: Operand, start: Operand = 0, lanes: int = 8) -> Iterator[tuple[Value, int]]:
    """`for i, lanes in strip(n):` goes `lanes` elements at a time, then, at `lanes` 0, one by one.

    So vectors never touch elements from `stop` on. The body is traced twice.
    """
    first = as_value(start, i64)
    whole = first + (as_value(stop, i64) - first) // lanes * lanes
    for i in loop(whole, first, lanes):
        yield i, lanes
    for i in loop(stop, whole):
        yield i, 0


def vectors_of(elements: int, lanes: int) -> list[tuple[int, int]]:
    """Cut elements into vectors, (start, lanes): each has at most `lanes`, and none goes beyond."""
    cut, start = [], 0
    while start < elements:
        fit = min(lanes, 1 << (elements - start).bit_length() - 1)
        cut.append((start, fit))
        start += fit
    return cut


def while_(condition: Callable[[], Value]) -> Iterator[None]:
    """`for _ in while_(lambda: x > 0):` repeats while the freshly traced condition holds."""
    builder = current().builder
    head = builder.append_basic_block("while")
    body = builder.append_basic_block("body")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch(condition().llvm, body, after)
    builder.position_at_end(body)
    yield
    if not builder.block.is_terminated:
        builder.branch(head)
    builder.position_at_end(after)


@contextmanager
def if_(condition: Value) -> Iterator[None]:
    """Trace the body under a condition (a scalar bool)."""
    builder = current().builder
    then = builder.append_basic_block("then")
    after = builder.append_basic_block("endif")
    builder.cbranch(condition.get().llvm, then, after)
    builder.position_at_end(then)
    yield
    if not builder.block.is_terminated:
        builder.branch(after)
    builder.position_at_end(after)


@contextmanager
def if_else(condition: Value) -> Iterator[Callable[[], None]]:
    """Both branches: `with if_else(c) as otherwise: …; otherwise(); …`."""
    builder = current().builder
    then = builder.append_basic_block("then")
    other = builder.append_basic_block("else")
    after = builder.append_basic_block("endif")
    builder.cbranch(condition.get().llvm, then, other)
    builder.position_at_end(then)

    def otherwise() -> None:
        if not builder.block.is_terminated:
            builder.branch(after)
        builder.position_at_end(other)

    yield otherwise
    if not builder.block.is_terminated:
        builder.branch(after)
    builder.position_at_end(after)


def call(target: ir.Function, args: Sequence[Operand], result: Type = i64) -> Value:
    """Call a function of the module; numbers among `args` take the parameter's type.

    `result` is the type of what comes back; it means nothing where the function returns nothing.
    """
    values = [
        arg.get().llvm if isinstance(arg, Value) else ir.Constant(param.type, arg)
        for arg, param in zip(args, target.args, strict=True)
    ]
    return Value(current().builder.call(target, values), result)


def call_address(
    code: Pointer, args: Sequence[Value], result: Type, *, variadic_from: int | None = None
) -> Value:
    """Call the function at an address, with the types of `args` as its parameters' types.

    From `variadic_from` on, the arguments are those of a C function that takes any number.
    """
    fixed = args if variadic_from is None else args[:variadic_from]
    signature = ir.FunctionType(
        result.llvm, [arg.type.llvm for arg in fixed], var_arg=variadic_from is not None
    )
    callee = _Callee(code.llvm, signature)
    return Value(current().builder.call(callee, [arg.get().llvm for arg in args]), result)


class _Callee:
    """An address with a signature: llvmlite calls functions only, LLVM any pointer."""

    def __init__(self, address: ir.Value, signature: ir.FunctionType) -> None:
        self.type = address.type
        self.function_type = signature
        self.get_reference = address.get_reference
