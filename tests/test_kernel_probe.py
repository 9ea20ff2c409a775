"""Probes of kernels: that they run what they say, in memory that is theirs. No time is judged."""

from collections.abc import Iterator

import numpy as np
import pytest

from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.kernel_probe import (
    AttentionCase,
    OpCase,
    OpProbe,
    ProductCase,
    StreamProbe,
)
from hotloop.backends.cpu.places import op_spec
from hotloop.backends.cpu.team import Team
from hotloop.compiler import compile_graph
from hotloop.frontends.decoder import Step
from hotloop.kernels.tile import OpSpec
from hotloop.machine.host import host
from hotloop.predict.models import open_shapes


def specs(model: str, tokens: int) -> list[OpSpec]:
    """The ops of a decode step of `tokens` sequences, each once."""
    graph = open_shapes(model, "q4_0").graph(Step(tokens, 512, batch=True))
    program = compile_graph(graph, host(1), "pipelined").program
    found = [op_spec(op, kernel.types) for kernel in program.kernels for op in kernel.ops]
    return list(dict.fromkeys(case for spec in found for case in spec.cases))


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2)
    yield team
    team.close()


def test_every_op_of_a_step_takes_time() -> None:
    ops = specs("llama-3.2-1b", 2)
    assert {"rms_norm", "rope", "attend", "sample", "store_keys"} <= {op.name for op in ops}
    probe = OpProbe([OpCase(op, 300) for op in ops if op.name != "linear"])
    assert all(seconds > 0 for seconds in probe.seconds())


def test_a_product_is_probed_on_what_a_cache_holds() -> None:
    (head,) = (op for op in specs("llama-3.2-1b", 1) if op.operands[-1].shape[0] > 100_000
               and op.name == "linear")  # fmt: skip
    case = OpCase(head, 0)
    assert 16 <= case.probed_rows < head.rows / 100
    assert 1e-9 < OpProbe([case]).seconds()[0] < 1


@pytest.mark.parametrize(
    ("weight", "activation", "tokens"),
    [("q4_0", "q8", 1), ("q8_0", "q8", 4), ("q4_k", "q8", 1), ("bf16", "f32", 2)],
)
def test_products_stream(team: Team, weight: str, activation: str, tokens: int) -> None:
    memory = Arena(1 << 20, "a test")
    probe = StreamProbe(ProductCase(weight, activation, 512, tokens), memory, team)
    assert 0.5e6 < probe._stream.nbytes < 1.1e6
    assert probe.rate() > 0
    assert not memory.data.any()  # read, never written


def test_attention_streams_layer_after_layer(team: Team) -> None:
    (spec,) = (op for op in specs("llama-3.2-1b", 3) if op.name == "attend")
    memory = Arena(16 << 20, "a test")
    probe = StreamProbe(AttentionCase(spec), memory, team)
    # Two pages of 256 positions for each of three tokens: keys, values.
    assert probe._stream.layer_bytes == 2 * 3 * 2 * 256 * 8 * 64 * 2
    assert probe._stream.layers == 5
    assert probe.rate() > 0
    assert not memory.data.any()


def test_memory_that_is_too_small_is_not_used(team: Team) -> None:
    small = Arena(64, "a test")
    assert StreamProbe(ProductCase("q8_0", "q8", 4096, 1), small, team).rate() > 0


def test_a_read_of_given_memory_stays_in_it(team: Team) -> None:
    memory = Arena(10_000, "a test")
    memory.data[:] = np.arange(10_000) % 251
    probe = ReadProbe(len(memory.data), team, memory)
    assert 8_000 < probe.nbytes <= 10_000
    assert probe.once() > 0
    assert probe.gbps() > 0
