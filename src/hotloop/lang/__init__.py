"""The kernel language: Python functions over typed values, traced to LLVM IR.

    with function(module, "scale", [("x", ptr), ("n", i64)]) as (x, n):
        x = x.cast(f32)
        for i in loop(n, step=8):
            x.store(x.load(i, lanes=8) * 2.0, i)

`types` has the types, `values` the operators, `flow` functions and loops, `math` and `dot` what
operators do not say, `atomic` what threads meet at.
"""

from hotloop.lang.atomic import (
    compare_exchange,
    fence,
    fetch_add,
    load_acquire,
    load_relaxed,
    pause,
    store_release,
)
from hotloop.lang.dot import add_pairs, dot2, dot4, dot4_signed, dot8_pairs
from hotloop.lang.flow import call, call_address, function, if_, if_else, loop, ret, strip, while_
from hotloop.lang.lookup import lookup
from hotloop.lang.math import (
    absolute,
    any_lane,
    bf16_to_f32,
    floor,
    fma,
    intrinsic,
    max_lanes,
    maximum,
    minimum,
    prefetch,
    round_even,
    select,
    sqrt,
    sum_lanes,
    tree,
)
from hotloop.lang.target import Target
from hotloop.lang.trace import Module, current
from hotloop.lang.types import (
    Type,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    ptr,
    u8,
    u16,
    u32,
    u64,
)
from hotloop.lang.values import (
    Operand,
    Pointer,
    Value,
    Var,
    as_value,
    constant,
    null,
    vector,
    zeros,
)

__all__ = [
    "Module",
    "Operand",
    "Pointer",
    "Target",
    "Type",
    "Value",
    "Var",
    "absolute",
    "add_pairs",
    "any_lane",
    "as_value",
    "bf16_to_f32",
    "bool_",
    "call",
    "call_address",
    "compare_exchange",
    "constant",
    "current",
    "dot2",
    "dot4",
    "dot4_signed",
    "dot8_pairs",
    "f16",
    "f32",
    "f64",
    "fence",
    "fetch_add",
    "floor",
    "fma",
    "function",
    "i8",
    "i16",
    "i32",
    "i64",
    "if_",
    "if_else",
    "intrinsic",
    "load_acquire",
    "load_relaxed",
    "lookup",
    "loop",
    "max_lanes",
    "maximum",
    "minimum",
    "null",
    "pause",
    "prefetch",
    "ptr",
    "ret",
    "round_even",
    "select",
    "sqrt",
    "store_release",
    "strip",
    "sum_lanes",
    "tree",
    "u8",
    "u16",
    "u32",
    "u64",
    "vector",
    "while_",
    "zeros",
]
