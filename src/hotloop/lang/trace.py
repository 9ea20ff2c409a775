"""Tracing: the module and the function that Python code is being traced into."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from llvmlite import ir

from hotloop.lang.target import Target
from hotloop.lang.types import Type


@dataclass
class Module:
    """An LLVM module under construction for one target; function names are unique in it."""

    name: str
    target: Target
    llvm: ir.Module = field(init=False)
    functions: dict[str, ir.Function] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.llvm = ir.Module(self.name)
        self.llvm.triple = self.target.triple

    def declare(self, name: str, result: Type | None, params: Sequence[Type]) -> ir.Function:
        """The declaration of an external function or intrinsic, made once."""
        if name not in self.functions:
            signature = ir.FunctionType(
                result.llvm if result else ir.VoidType(), [p.llvm for p in params]
            )
            self.functions[name] = ir.Function(self.llvm, signature, name)
        return self.functions[name]

    def __str__(self) -> str:
        return str(self.llvm)


@dataclass
class Tracer:
    """The function being traced: its module, and LLVM's builder at the current position."""

    module: Module
    function: ir.Function
    builder: ir.IRBuilder

    def alloca(self, type: Type) -> ir.Value:
        """A stack slot in the entry block, where LLVM turns it into a register."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(type.llvm)


_stack: list[Tracer] = []


def current() -> Tracer:
    """The innermost function being traced."""
    if not _stack:
        raise RuntimeError("kernel-language values exist only while a function is traced")
    return _stack[-1]


@contextmanager
def tracing(tracer: Tracer) -> Iterator[Tracer]:
    _stack.append(tracer)
    try:
        yield tracer
    finally:
        _stack.pop()
