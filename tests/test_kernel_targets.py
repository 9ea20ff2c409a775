"""Every kernel compiles for every target, into code that calls nothing it should not."""

import pytest
from jit import assembly, calls

import hotloop.kernels
from hotloop.ir.ops import OPS, infer
from hotloop.ir.types import TensorType, tensor
from hotloop.kernels.tile import KERNELS, OpSpec, define
from hotloop.lang import Module, Target
from hotloop.lang.target import AARCH64, X86_64

AVX2 = Target("x86_64-unknown-linux-gnu", "haswell", frozenset({"avx2", "fma", "f16c"}))

X, Q8 = tensor("f32", 4, 96), tensor("q8", 4, 96)
ONE = tensor("f32", 1, 96)
POS, RING, CONTROL = tensor("i32", 1), tensor("i32", 1, 64), tensor("control", 1)
PAGES = tensor("i32", 1, 3)
HALF, FULL = tensor("f16", 5, 2, 256, 48), tensor("f32", 5, 2, 256, 48)
CODES = tensor("i8", 5, 2, 256, 52)
HEADS = {"heads": 2, "scale": 0.25, "softcap": 0.0, "window": 0}
ROUTE = {"group_best": 1, "groups": 1, "scoring": "softmax", "top": 2, "top_groups": 1}
WEIGH = {"normalise": 0, "scale": 2.5}
EXPERTS = tensor("f16", 8, 40, 96)
OPERANDS: list[tuple[str, tuple[TensorType, ...], dict]] = [
    ("embed", (tensor("i32", 4), tensor("q4_1", 131, 96)), {}),
    ("embed", (tensor("i32", 4), tensor("q6_k", 131, 256)), {}),
    ("rms_norm", (X, tensor("f32", 96)), {"eps": 1e-5}),
    ("quantise", (X,), {}),
    ("linear", (Q8, tensor("q4_1", 40, 96)), {}),
    ("linear", (Q8, tensor("q8_0", 40, 96)), {}),
    ("linear", (X, tensor("bf16", 40, 96)), {}),
    ("linear", (Q8, tensor("q5_1", 40, 96)), {}),
    ("linear", (Q8, tensor("mxfp4", 40, 96)), {}),
    ("linear", (tensor("q8", 4, 256), tensor("q6_k", 40, 256)), {}),
    ("linear", (tensor("f32", 4, 256), tensor("q4_k", 40, 256)), {}),
    ("rope", (X, POS, tensor("f32", 64, 48)), {"head_dim": 48, "pairing": "half", "first_row": 0}),
    (
        "rope",
        (X, POS, tensor("f32", 64, 48)),
        {"head_dim": 48, "pairing": "interleaved", "first_row": 0},
    ),
    ("store_keys", (HALF, X, POS, PAGES), {"head_dim": 48}),
    ("store_values", (FULL, X, POS, PAGES), {"head_dim": 48}),
    ("store_keys", (CODES, X, POS, PAGES), {"head_dim": 48}),
    ("store_values", (CODES, X, POS, PAGES), {"head_dim": 48}),
    ("attention", (X, CODES, CODES, POS, PAGES), HEADS),
    ("attend", (ONE, CODES, CODES, POS, PAGES), HEADS),
    ("attention", (X, HALF, HALF, POS, PAGES), HEADS),
    ("attention", (X, FULL, FULL, POS, PAGES), HEADS),
    ("attend", (ONE, HALF, HALF, POS, PAGES), HEADS),
    ("attend", (ONE, FULL, FULL, POS, PAGES), HEADS),
    ("combine", (tensor("f32", 1, 2 * 3 * 50), POS), {"heads": 2, "head_dim": 48, "window": 0}),
    ("route", (X,), ROUTE),
    ("route", (X, tensor("f32", 96)), ROUTE | {"scoring": "sigmoid", "groups": 8}),
    ("route_weights", (X, tensor("i32", 4, 2)), WEIGH | {"scoring": "softmax"}),
    ("route_weights", (X, tensor("i32", 4, 2)), WEIGH | {"scoring": "sigmoid"}),
    ("expert_linear", (Q8, tensor("q4_1", 8, 40, 96), tensor("i32", 4, 2)), {}),
    ("expert_linear", (X, EXPERTS, tensor("i32", 4, 2), tensor("f32", 8, 40)), {}),
    ("expert_mix", (Q8, tensor("q8_0", 8, 40, 32), tensor("i32", 4, 3), tensor("f32", 4, 3)), {}),
    ("layer_norm", (X, tensor("f32", 96), tensor("f32", 96)), {"eps": 1e-5}),
    ("head_norm", (X, tensor("f32", 48)), {"eps": 1e-5, "head_dim": 48}),
    ("bias", (X, tensor("f32", 96)), {}),
    ("gated", (X, tensor("f32", 4, 1)), {}),
    ("scale", (X,), {"factor": 0.5}),
    ("softcap", (X,), {"cap": 30.0}),
    ("gelu", (X,), {"form": "tanh"}),
    ("geglu", (X, X), {"form": "erf"}),
    ("swiglu_clamped", (X, X), {"alpha": 1.702, "limit": 7.0}),
    ("spread", (X, tensor("f32", 4, 16)), {"head_dim": 48}),
    ("narrow", (X,), {"head_dim": 48, "keep": 32}),
    ("gather", (X, tensor("i32", 96)), {}),
    ("swiglu", (X, X), {}),
    ("add", (X, X), {}),
    ("sample", (tensor("f32", 1, 1000), RING, POS, CONTROL), {}),
    ("emit", (POS, RING, POS, CONTROL), {}),
    ("advance", (POS,), {}),
    ("draft", (POS, RING, CONTROL), {"tokens": 4}),
    ("accept", (tensor("i32", 4), tensor("i32", 4), RING, POS, CONTROL), {}),
    ("reached", (CONTROL,), {}),
    ("filled", (tensor("i32", 4),), {}),
]
SPECS = [
    OpSpec(name, operands, infer(name, operands, attrs), tuple(attrs.items()))
    for name, operands, attrs in OPERANDS
]
#: What publishes a token wakes whoever waits for it, by the system.
RINGS = {"emit": {"write"}, "accept": {"write"}}
IDS = [f"{spec.name}-{i}" for i, spec in enumerate(SPECS)]


def code(spec: OpSpec, target: Target) -> str:
    module = Module("targets", target)
    define(module, spec, "tile").linkage = "external"
    return assembly(module)


def test_every_op_has_a_kernel_and_every_kernel_is_tried() -> None:
    assert set(KERNELS) == set(OPS) == {spec.name for spec in SPECS}
    assert hotloop.kernels.__all__


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_aarch64_calls_nothing(spec: OpSpec) -> None:
    text = code(spec, AARCH64)
    assert calls(text) <= RINGS.get(spec.name, set())
    if spec.name in ("attend", "attention", "linear", "rms_norm"):
        assert ("smull" if CODES in spec.operands else "fmla") in text


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_avx2_calls_nothing(spec: OpSpec) -> None:
    text = code(spec, AVX2)
    assert calls(text) <= RINGS.get(spec.name, set())
    if spec.name in ("attend", "attention", "linear", "rms_norm"):
        assert ("vpmaddwd" if CODES in spec.operands else "vfmadd") in text


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_old_x86_calls_only_the_fused_multiply_add(spec: OpSpec) -> None:
    """Without the instruction, C's fmaf: slow, but the same bits."""
    text = code(spec, X86_64)
    assert calls(text) <= {"fmaf", *RINGS.get(spec.name, ())}
