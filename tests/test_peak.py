"""The peak probe: loops of nothing but multiply-adds, and that they run. No speed is judged."""

import re

import pytest
from jit import TARGETS, assembly

from hotloop.backends.cpu import peak
from hotloop.lang import Module, Target
from hotloop.lang.target import AARCH64_DOT, AMX, AVX2, AVX512_VNNI, AVX_VNNI


@pytest.mark.parametrize(
    ("target", "instruction", "number", "multiply_adds"),
    [
        (AMX, "tdpbssd", 4, 4 * 16 * 16 * 64),
        (AVX512_VNNI, "vpdpbusd.*zmm", 12, 12 * 64),
        (AVX_VNNI, "vpdpbusd.*ymm", 12, 12 * 32),
        (AVX2, "vpmaddubsw", 12, 12 * 32),
        (AARCH64_DOT, "sdot", 12, 12 * 16),
    ],
)
def test_the_loop_is_the_instruction(
    target: Target, instruction: str, number: int, multiply_adds: int
) -> None:
    """As many of them as the count says."""
    module = Module("probe", target)
    assert peak.define_probe(module) == multiply_adds
    text = assembly(module)
    body = next(
        block
        for block in re.split(r"\n\.?L?BB\w+:", text)
        if len(re.findall(instruction, block)) > 3
    )
    assert len(re.findall(instruction, body)) == number


@pytest.mark.parametrize("target", TARGETS, ids=["host", "portable"])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_runs(threads: int, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "LAUNCH_SECONDS", 1e-4)
    assert peak.multiply_add_peak(threads, target, seconds=0.0) > 0
