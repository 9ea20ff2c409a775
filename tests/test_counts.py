"""Counts: what a token costs, on programs small enough to count by hand."""

from pathlib import Path

import pytest

from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.decoder import Step
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.ir.graph import Graph
from hotloop.ir.parse import parse_program
from hotloop.machine.host import host
from hotloop.report.counts import Counts, count, multiply_adds, traffic

TINY = Path(__file__).parent / "data" / "tiny"
LAYERS = 3

DECLARED = """
  input %x : f32[1,64]
  weight %w.{0..1} : f32[64]
"""
KERNEL = """
  kernel @k(%x : f32[1,64], %w : f32[64]) -> (%z) {
    stage %s0 after %entry { part tile 1 { %y = rms_norm(%x, %w) {eps=1e-05} : f32[1,64] } }
    stage %s1 after %s0 { part tile 1 { %z = add(%y, %y) : f32[1,64] } }
  }
"""
CALLS = """
  %a = call @k(%x, %w.0)
  %b = call @k(%a, %w.1)
  output %b
"""
LOOP = """
  loop %i < 2 {
    carried %c = %x next %d buffers 2
    stacked %w = %w.{0..1}
    %d = call @k(%c, %w)
    yield %d -> %b
  }
  output %b
"""


def graph(name: str) -> Graph:
    return decoder(open_model(TINY / name)).graph(Step(context=64, activations="f32"))


def counts(text: str) -> Counts:
    return count(parse_program(text))


def test_a_launch_for_each_call_waits_once_inside_and_once_at_its_join() -> None:
    made = counts("program @p launch=item {" + DECLARED + KERNEL + CALLS + "}")
    assert made == Counts(kernels=1, calls=2, launches_per_run=2, endless=False, syncs=4)


def test_in_one_launch_the_second_call_waits_for_the_first() -> None:
    made = counts("program @p launch=program {" + DECLARED + KERNEL + CALLS + "}")
    # Stage s1 twice, the entry of the second call, and the join.
    assert made == Counts(kernels=1, calls=2, launches_per_run=1, endless=False, syncs=4)


def test_a_loop_is_one_call_that_waits_as_often_as_its_calls_written_down() -> None:
    made = counts("program @p launch=program {" + DECLARED + KERNEL + LOOP + "}")
    assert made == Counts(kernels=1, calls=1, launches_per_run=1, endless=False, syncs=4)


def test_a_loop_gets_the_bytes_of_each_iterations_own_weight() -> None:
    for body in (CALLS, LOOP):
        read = traffic(
            parse_program("program @p launch=program {" + DECLARED + KERNEL + body + "}")
        )
        assert dict(read.weights) == {"f32": 2 * 64 * 4}
        assert read.kv_per_position == 0


def test_a_barrier_is_a_wait() -> None:
    text = "program @p launch=item {" + DECLARED + KERNEL + CALLS + "}"
    assert counts(text.replace("stage %s1 after %s0", "stage %s1 barrier")).syncs == 4


def test_launches_of_a_generation_are_shared_by_its_tokens() -> None:
    endless = Counts(kernels=1, calls=1, launches_per_run=1, endless=True, syncs=1)
    assert endless.launches(64) == 1 / 64
    assert endless.launches_text == "1 per generation"
    stepwise = Counts(kernels=1, calls=1, launches_per_run=637, endless=False, syncs=1)
    assert stepwise.launches(64) == 637
    assert Counts(1, 1, 1234, False, 1).launches_text == "1,234"


@pytest.mark.parametrize("name", ["llama", "llama_tied"])
def test_every_rung_reads_the_same_bytes(name: str) -> None:
    made = {s: compile_graph(graph(name), host(2), s).program for s in SCHEDULES}
    reads = [traffic(program) for program in made.values()]
    assert all(dict(read.weights) == dict(reads[0].weights) for read in reads)
    assert all(read.kv_per_position == reads[0].kv_per_position for read in reads)


def test_bytes_are_those_of_the_stored_weights() -> None:
    step = graph("llama")
    read = traffic(compile_graph(step, host(2), "tokens").program)
    looked_up = {"token_embd.weight", "rope.table"}
    whole = sum(w.type.nbytes for w in step.weights if w.name not in looked_up)
    embedding, rope = (step.types[name] for name in ("token_embd.weight", "rope.table"))
    rows = embedding.nbytes // embedding.shape[0] + 2 * LAYERS * rope.nbytes // rope.shape[0]
    assert read.weight_bytes == whole + rows
    cache = next(state.type for state in step.states if state.name == "blk.0.keys")
    assert read.kv_per_position == 2 * LAYERS * cache.shape[1] * cache.shape[3] * 4
    assert read.total(9) == read.weight_bytes + 10 * read.kv_per_position


def test_a_window_bounds_what_is_read_of_the_cache() -> None:
    step = graph("gemma3_text")
    windows = [int(dict(op.attrs)["window"]) for op in step.ops if op.name == "attend"]
    assert {0, max(windows)} == set(windows), "layers of both kinds"
    cache = next(state.type for state in step.states if state.name == "blk.0.keys")
    each = 2 * cache.shape[1] * cache.shape[3] * 4
    for position in (0, max(windows) - 1, max(windows), 40):
        expected = sum(each * min(position + 1, window or position + 1) for window in windows)
        for schedule in SCHEDULES:
            read = traffic(compile_graph(step, host(2), schedule).program)
            assert read.total(position) - read.weight_bytes == expected


def test_a_tied_embedding_is_read_whole_by_the_head_and_one_row_by_the_lookup() -> None:
    step = graph("llama_tied")
    type = step.types["token_embd.weight"]
    tied = traffic(compile_graph(step, host(2), "ops").program).weight_bytes
    others = sum(
        w.type.nbytes for w in step.weights if w.name not in ("token_embd.weight", "rope.table")
    )
    rope = step.types["rope.table"]
    layers = sum(w.name.endswith("attn_q.weight") for w in step.weights)
    rows = type.nbytes // type.shape[0] + 2 * layers * rope.nbytes // rope.shape[0]
    assert tied == others + type.nbytes + rows


@pytest.mark.parametrize("name", ["llama", "llama_tied"])
def test_a_prompt_multiplies_by_every_matrix_of_the_layers_once(name: str) -> None:
    step = graph(name)
    outside = ("token_embd.weight", "output.weight", "rope.table")
    matrices = [w for w in step.weights if len(w.type.shape) == 2 and w.name not in outside]
    assert len(matrices) == 7 * LAYERS
    assert multiply_adds(step) == sum(matrix.type.elements for matrix in matrices)


def test_the_ladder_needs_fewer_launches_and_waits_at_every_rung() -> None:
    made = {s: count(compile_graph(graph("llama"), host(2), s).program) for s in SCHEDULES}
    launches = [made[s].launches(100) for s in SCHEDULES]
    assert launches[0] == len(graph("llama").ops)
    assert launches == sorted(launches, reverse=True)
    assert launches[2:] == [1, 1, 0.01]
    syncs = [made[s].syncs for s in SCHEDULES]
    assert syncs == sorted(syncs, reverse=True)
    assert made["tokens"].endless
    assert not made["pipelined"].endless
    assert made["ops"].calls == made["ops"].launches_per_run
    assert [made[s].calls for s in SCHEDULES[1:]] == [LAYERS + 3, 4, 4, 4]


def test_the_default_model_reads_96_6_megabytes(default_model: Path) -> None:
    step = decoder(open_model(default_model)).graph(Step())
    read = traffic(compile_graph(step, host(2), "tokens").program)
    assert read.weight_bytes == pytest.approx(96.6e6, abs=0.05e6)
    assert read.kv_per_position == 30 * 2 * 3 * 64 * 2


def test_a_position_of_an_eight_bit_cache() -> None:
    """Codes of whole sixteens and a scale of four bytes, for keys and for values."""
    model = decoder(open_model(TINY / "llama"))
    made = compile_graph(model.graph(Step(context=64, kv_cache="q8")), host(1), "ops").program
    config = model.config
    width = -(-config.head_dim // 16) * 16 + 4
    assert traffic(made).kv_per_position == config.layers * config.kv_heads * 2 * width
