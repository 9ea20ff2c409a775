"""Atomics: the loads, stores and read-modify-writes that threads meet at (i32 and i64)."""

from llvmlite.ir.instructions import StoreAtomicInstr

from hotloop.lang.trace import current
from hotloop.lang.types import bool_, i32
from hotloop.lang.values import Operand, Pointer, Value, as_value


def load_acquire(address: Pointer) -> Value:
    """Read; everything that the writer wrote before its release is visible after."""
    type = address.element
    llvm = current().builder.load_atomic(address.llvm, "acquire", align=type.size, typ=type.llvm)
    return Value(llvm, type)


def load_relaxed(address: Pointer) -> Value:
    type = address.element
    llvm = current().builder.load_atomic(address.llvm, "monotonic", align=type.size, typ=type.llvm)
    return Value(llvm, type)


def store_release(address: Pointer, value: Operand) -> None:
    builder, stored = current().builder, as_value(value, address.element)
    # llvmlite's builder.store_atomic still asks for typed pointers.
    size = address.element.size
    builder._insert(StoreAtomicInstr(builder.block, stored.llvm, address.llvm, "release", size))


def fetch_add(address: Pointer, value: Operand) -> Value:
    """Add, acquire and release; gives the value before."""
    added = as_value(value, address.element)
    llvm = current().builder.atomic_rmw("add", address.llvm, added.llvm, "acq_rel")
    return Value(llvm, address.element)


def compare_exchange(address: Pointer, expected: Value, new: Value) -> tuple[Value, Value]:
    """Write `new` where `expected` is found; gives (value found, whether it was written)."""
    builder = current().builder
    pair = builder.cmpxchg(address.llvm, expected.get().llvm, new.get().llvm, "acq_rel", "acquire")
    found = Value(builder.extract_value(pair, 0), address.element)
    return found, Value(builder.extract_value(pair, 1), bool_)


def fence() -> None:
    """Order everything before against everything after, for all threads."""
    current().builder.fence("seq_cst")


def pause() -> None:
    """Tell the CPU that this is a spin loop."""
    tracer = current()
    triple = tracer.module.target.triple
    if triple.startswith("x86_64"):
        tracer.builder.call(tracer.module.declare("llvm.x86.sse2.pause", None, []), [])
    elif triple.startswith("aarch64"):
        hint = tracer.module.declare("llvm.aarch64.hint", None, [i32])
        tracer.builder.call(hint, [as_value(1, i32).llvm])  # 1 is YIELD
