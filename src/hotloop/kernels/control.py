"""The control block, as kernels see it: a pointer to each field."""

from hotloop.ir.types import CONTROL
from hotloop.lang import Pointer, Type, Value, f32, i32, i64, u64

_ELEMENTS = {"<u8": u64, "<i8": i64, "<f4": f32, "<i4": i32}


def field(control: Pointer, name: str) -> Pointer:
    """The address of a field of `CONTROL`, with the type of its elements."""
    assert CONTROL.fields is not None
    dtype, offset = CONTROL.fields[name][:2]
    element: Type = _ELEMENTS[dtype.base.str]
    return control.at(offset).cast(element)


def read(control: Pointer, name: str) -> Value:
    return field(control, name).load()
