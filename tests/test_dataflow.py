"""The simulated machine: laws that hold for every program, and values that are the right ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.backends.dataflow import values
from hotloop.backends.dataflow.simulate import (
    PLAIN,
    TILE_BYTES,
    TILES,
    Mode,
    Timeline,
    simulate,
)
from hotloop.backends.dataflow.work import Work, Workload, kernel_work
from hotloop.compiler import compile_graph
from hotloop.frontends.config_only import open_bundled
from hotloop.frontends.decoder import Step
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.interp import run_graph
from hotloop.ir.program import Call, Program
from hotloop.ir.types import tensor
from hotloop.ir.verify import verify
from hotloop.machine.hardware import Hardware
from hotloop.machine.load import find, shipped
from hotloop.machine.machine import Machine
from hotloop.passes.library import library
from hotloop.report.counts import count, executed
from hotloop.util.errors import ProgramError

CHIPS = [name for name in shipped() if find(name).kind != "cpu"]
SHORT = Workload(4096)
RUNGS = ("ops", "library", "fused", "looped")


@cache
def program(model: str, schedule: str) -> Program:
    graph = open_bundled(model).graph(Step(context=4096))
    if schedule == "library":
        return library(graph)
    return compile_graph(graph, Machine("test", 1), schedule).program


def run(
    model: str,
    schedule: str,
    hardware: Hardware,
    load: Workload = SHORT,
    mode: Mode = PLAIN,
    steps: int = 1,
) -> Timeline:
    return simulate(program(model, schedule), hardware, load, mode, steps=steps)


# Values ------------------------------------------------------------------------------------------


def toy(schedule: str) -> Program:
    graph = toys.graph()
    if schedule == "library":
        verify(library(graph))
        return library(graph)
    return compile_graph(graph, Machine("test", 2), schedule).program


@pytest.mark.parametrize("name", ["sn40l-x16", "dgx-h100"])
@pytest.mark.parametrize("schedule", [*RUNGS, "pipelined"])
def test_the_timed_schedule_computes_what_the_graph_says(name: str, schedule: str) -> None:
    graph, timed = toys.graph(), toy(schedule)
    expected_state = toys.values(graph)
    expected: list[np.ndarray] = []
    found: list[np.ndarray] = []

    def keep(into: list[np.ndarray], step: Callable[..., dict[str, np.ndarray]]) -> Callable:
        def run_and_keep(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            outputs = step(arrays)
            into.append(outputs["logits"].copy())
            return outputs

        return run_and_keep

    tokens = toys.generate(keep(expected, lambda v: run_graph(graph, v)), graph, expected_state)
    state = toys.values(timed)
    machine = find(name)
    ids = toys.generate(
        keep(found, lambda v: values.run(timed, v, machine, Workload(16))), timed, state
    )
    assert ids == tokens
    for logits, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(logits, right)
    for key in ("blk.0.keys", "blk.1.values", "ring", "control"):
        np.testing.assert_array_equal(state[key], expected_state[key])


@pytest.mark.parametrize("at", [1, 3, 5, 12])
def test_an_op_that_does_not_wait_shows(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, machine = toy("looped"), find("sn40l-x16")
    right = values.run(timed, toys.values(timed), machine, Workload(16))["logits"].copy()

    def hasty(*args: Any, **kwargs: Any) -> Timeline:
        timeline = simulate(*args, **kwargs)
        times = list(timeline.executed)
        times[at] = (times[at][0] - 1e-3, times[at][1] - 1e-3)  # before its inputs are there
        return replace(timeline, executed=tuple(times))

    monkeypatch.setattr(values, "simulate", hasty)
    wrong = values.run(timed, toys.values(timed), machine, Workload(16))["logits"]
    assert not np.array_equal(wrong, right)


def test_an_operand_that_changes_while_it_is_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = toy("looped")

    def slow(*args: Any, **kwargs: Any) -> Timeline:
        timeline = simulate(*args, **kwargs)
        times = list(timeline.executed)
        times[1] = (times[1][0], times[-1][1])  # the first norm reads to the end of the step
        return replace(timeline, executed=tuple(times))

    monkeypatch.setattr(values, "simulate", slow)
    with pytest.raises(ProgramError, match="rms_norm reads an operand while it changes"):
        values.run(timed, toys.values(timed), find("sn40l-x16"), Workload(16))


# Calls -------------------------------------------------------------------------------------------


def test_the_calls_of_llama_3_1_8b() -> None:
    """10 × 32 kernels for the layers on a GPU, 35 fused, 4 looped: the published counts."""
    counts = {name: count(program("llama-3.1-8b", name)).calls for name in RUNGS}
    assert counts == {"ops": 582, "library": 323, "fused": 35, "looped": 4}
    body = program("llama-3.1-8b", "library").body
    layers = [call for call in body if any("blk." in name for name in call.uses)]
    assert len(layers) - 1 == 10 * 32  # the first norm is joined to the embedding
    assert run("llama-3.1-8b", "looped", find("sn40l-x16")).launches == 4
    assert run("llama-3.1-8b", "fused", find("sn40l-x16")).launches == 35


def test_a_generation_is_one_launch() -> None:
    assert run("llama-3.2-1b", "tokens", find("sn40l-x16"), steps=5).launches == 1


# Laws --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b"])
def test_no_step_is_faster_than_its_bytes(name: str, model: str) -> None:
    machine = find(name)
    for schedule in RUNGS:
        timeline = run(model, schedule, machine)
        peak = machine["memory_bandwidth"] * machine["memory_share"]
        assert timeline.seconds >= timeline.streamed / peak
        assert timeline.streamed * machine["sockets"] > 2e9


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b", "llama-3.1-405b"])
def test_looping_is_never_slower(name: str, model: str) -> None:
    fused, looped = (run(model, s, find(name)).seconds for s in ("fused", "looped"))
    assert looped <= fused
    assert run(model, "ops", find(name)).seconds > fused


_WORSE = ("start", "fill", "stage_sync", "memory_latency", "link_latency", "host_call", "token")


@settings(max_examples=40)
@given(
    field=st.sampled_from((*_WORSE, "program_load", "argument_load")),
    factor=st.floats(1, 50),
    schedule=st.sampled_from(RUNGS),
    software=st.booleans(),
)
def test_more_of_any_cost_is_never_faster(
    field: str, factor: float, schedule: str, software: bool
) -> None:
    machine, mode = find("sn40l-x8"), Mode(software=software)
    slower = machine.with_values(**{field: machine[field] * factor})
    before = run("llama-3.2-1b", schedule, machine, mode=mode).seconds
    assert run("llama-3.2-1b", schedule, slower, mode=mode).seconds >= before * (1 - 1e-12)


@settings(max_examples=30)
@given(
    field=st.sampled_from(("memory_bandwidth", "compute", "onchip_size", "link_bandwidth")),
    factor=st.floats(1, 20),
    schedule=st.sampled_from(RUNGS),
)
def test_more_of_anything_good_is_never_slower(field: str, factor: float, schedule: str) -> None:
    machine = find("sn40l-x8")
    better = machine.with_values(**{field: machine[field] * factor})
    before = run("llama-3.2-1b", schedule, machine).seconds
    assert run("llama-3.2-1b", schedule, better).seconds <= before * (1 + 1e-12)


def test_a_longer_context_and_a_larger_batch_take_longer() -> None:
    machine = find("sn40l-x16")
    seconds = [
        run("llama-3.1-8b", "looped", machine, Workload(*load)).seconds
        for load in ((1024, 1), (4096, 1), (4096, 4), (4096, 64), (65536, 64))
    ]
    assert seconds == sorted(seconds)


def test_sums_of_their_own_cost_more_than_streamed_ones() -> None:
    machine = find("sn40l-x16")
    apart = run("llama-3.1-8b", "looped", machine, mode=Mode(streamed=False))
    inside = run("llama-3.1-8b", "looped", machine)
    assert apart.seconds > inside.seconds
    assert apart.launches == inside.launches + 2 * 32 + 1  # two sums a layer, and the logits


def test_software_orchestration_costs_a_visit_of_the_host_per_command() -> None:
    """Argument load and start of each call, and a program load where the kernel changes."""
    machine = find("sn40l-x8")
    own = run("llama-3.1-8b", "fused", machine)
    hosted = run("llama-3.1-8b", "fused", machine, mode=Mode(software=True))
    assert hosted.seconds - own.seconds == pytest.approx((2 * 35 + 4) * machine["host_call"])
    gpu = find("dgx-h100")
    eager = run("llama-3.1-8b", "fused", gpu, mode=Mode(software=True))
    graph = run("llama-3.1-8b", "fused", gpu)
    assert eager.seconds - graph.seconds == pytest.approx(35 * gpu["host_call"])


# The picture of the paper ------------------------------------------------------------------------


def dark(timeline: Timeline) -> float:
    """Seconds inside the run in which memory sends nothing."""
    busy = sorted((s.start, s.end) for s in timeline.spans if s.resource == "memory")
    return sum(max(0.0, b[0] - a[1]) for a, b in pairwise(busy))


def test_memory_falls_silent_at_layer_boundaries_and_then_does_not() -> None:
    machine = find("sn40l-x16")
    fused, looped = (
        simulate(program("llama-3.1-8b", s), machine, Workload(4096), record=True)
        for s in ("fused", "looped")
    )
    launch = machine["argument_load"] + machine["start"] + machine["fill"]
    assert dark(fused) >= 34 * launch
    assert dark(looped) <= 4 * (launch + machine["program_load"] + 20e-6)


def test_405b_is_streamed_tile_by_tile() -> None:
    """A whole next layer does not fit on the chip, and looping must not need it to."""
    machine = find("sn40l-x8")
    layer = program("llama-3.1-405b", "looped")
    stacked = [a for item in layer.body if hasattr(item, "args") and not hasattr(item, "kernel")
               for a in item.args if a.kind == "stacked"]  # fmt: skip
    types = layer.types
    nbytes = sum(types[arg.outer[0]].nbytes for arg in stacked) / machine["sockets"]
    assert 2 * nbytes > machine["onchip_size"]
    timeline = run("llama-3.1-405b", "looped", machine)
    assert timeline.streamed / timeline.seconds > 0.95 * (
        machine["memory_bandwidth"] * machine["memory_share"]
    )


# The clock ---------------------------------------------------------------------------------------


def events(
    tiles: list[tuple[float, float]], room: float, bandwidth: float, latency: float, begin: float
) -> float:
    """When the last tile is computed, by a queue of events: an independent clock.

    `tiles` are (bytes, seconds to compute); memory sends them in order as long as there is room,
    one unit computes them in order, and a tile that is computed makes room.
    """
    queue: list[tuple[float, int, str, int]] = []
    arrived, counter, end = set(), 0, begin
    sending, working, next_sent, next_done = False, False, 0, 0

    def at(when: float, what: str, tile: int) -> None:
        nonlocal counter
        counter += 1
        heappush(queue, (when, counter, what, tile))

    at(begin, "begin", 0)
    while queue:
        now, _, what, tile = heappop(queue)
        if what == "sent":
            sending = False
            at(now + latency, "arrived", tile)
        elif what == "arrived":
            arrived.add(tile)
        elif what == "done":
            working, end, room = False, now, room + tiles[tile][0]
        if not sending and next_sent < len(tiles) and tiles[next_sent][0] <= room:
            room -= tiles[next_sent][0]
            sending = True
            at(now + tiles[next_sent][0] / bandwidth, "sent", next_sent)
            next_sent += 1
        if not working and next_done in arrived:
            working = True
            at(now + tiles[next_done][1], "done", next_done)
            next_done += 1
    assert next_done == len(tiles)
    return end


@settings(max_examples=60)
@given(
    layers=st.integers(1, 6),
    width=st.sampled_from((64, 128, 256, 512)),
    room=st.floats(1, 40),
    bandwidth=st.floats(1e8, 1e11),
    onchip=st.floats(1e8, 1e11),
    latency=st.floats(0, 1e-4),
)
def test_the_clock_is_that_of_a_queue_of_events(
    layers: int, width: int, room: float, bandwidth: float, onchip: float, latency: float
) -> None:
    g = GraphBuilder("chain")
    x = g.input("x", tensor("f32", 1, width))
    for i in range(layers):
        weight = g.weight(f"blk.{i}.w", tensor("f32", width, width))
        with g.scope(f"blk.{i}"):
            x = g.linear(x, weight, "y")
    chain = compile_graph(g.build((x,)), Machine("test", 1), "looped").program
    nbytes = width * width * 4
    count = min(TILES, max(1, -(-nbytes // TILE_BYTES)))
    machine = find("sn40l-x16").with_values(
        sockets=1, memory_bandwidth=bandwidth, memory_share=1, memory_latency=latency,
        onchip_size=max(1.0, room) * nbytes / count, onchip_bandwidth=onchip, stage_sync=0,
        compute=1e30, token=0,
    )  # fmt: skip
    run_ = simulate(chain, machine, Workload(1))
    begin = machine["argument_load"] + machine["start"] + machine["fill"]
    seconds = (nbytes + 2 * width * 4) / onchip / count
    tiles = [(nbytes / count, seconds)] * (count * layers)
    expected = events(tiles, machine["onchip_size"] * (1 + 1e-12), bandwidth, latency, begin)
    assert run_.executed[-1][1] == pytest.approx(expected, rel=1e-9)


# Tensor parallelism ------------------------------------------------------------------------------


def works(model: str, sockets: int) -> list[Work]:
    """The ops of a whole step on one of so many sockets, from the program of one op per call."""
    found: list[Work] = []
    split: set[str] = set()
    timed = program(model, "ops")
    stored = {value.name: value.type for value in timed.weights}
    for call in timed.body:
        assert isinstance(call, Call)
        names = dict(zip((p.name for p in call.kernel.params), call.args, strict=True))
        weights = {name: stored[arg] for name, arg in names.items() if arg in stored}
        halves = frozenset(name for name, arg in names.items() if arg in split)
        made, left = kernel_work(call.kernel, weights, halves, sockets, SHORT)
        found += made
        pairs = zip(call.kernel.results, call.results, strict=True)
        split |= {outer for inner, outer in pairs if inner in left}
    return found


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-0.5b", "mixtral-8x7b"])
def test_sockets_share_all_bytes_and_operations_of_products(model: str) -> None:
    alone, shared = works(model, 1), works(model, 8)
    for one, eighth in zip(alone, shared, strict=True):
        if one.op.name in ("linear", "attend", "expert_linear", "expert_mix"):
            assert eighth.streamed == pytest.approx(one.streamed / 8)
            assert eighth.operations == pytest.approx(one.operations / 8)
    assert not any(work.gathered or work.reduced for work in alone)


def test_a_layer_has_two_sums_over_the_sockets() -> None:
    shared = works("llama-3.1-8b", 8)
    sums = [work for work in shared if work.reduced]
    assert len(sums) == 2 * 32
    assert all(work.op.name == "linear" for work in sums)
    assert sums[0].reduced == pytest.approx(2 * 4096 * 2 * 7 / 8)
    assert [work.op.name for work in shared if work.gathered] == ["sample"]


def test_a_mixture_reads_the_experts_that_tokens_choose() -> None:
    whole = sum(work.streamed for work in works("mixtral-8x7b", 1))
    timed = program("mixtral-8x7b", "fused")
    everything = sum(value.type.nbytes for value in timed.weights)
    assert 0.25 < whole / everything < 0.32  # two experts of eight, and what all tokens share
    one, many = (
        run("mixtral-8x7b", "looped", find("sn40l-x16"), Workload(4096, batch)).streamed
        for batch in (1, 32)
    )
    cache = 31 * 2**29 / 16  # of the other sequences
    assert 3 * one < many - cache < 4 * one


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-r1"])
def test_no_expert_is_asked_for_before_the_router_has_chosen(model: str) -> None:
    """Dense weights are sent ahead; which experts come next is not known by then."""
    mixture = program(model, "looped")
    timeline = simulate(mixture, find("sn40l-x16"), SHORT, record=True)
    ops = [op for call, _ in executed(mixture.body, {}) for op in call.kernel.ops]
    chosen = [end for op, (_, end) in zip(ops, timeline.executed, strict=True)
              if op.name == "route"]  # fmt: skip
    sent = [span.start for span in timeline.spans
            if span.resource == "memory" and "expert_linear" in span.what]  # fmt: skip
    each = len(sent) // len(chosen)
    firsts = sent[::each]
    assert len(firsts) == len(chosen)
    assert all(first > end for first, end in zip(firsts, chosen, strict=True))
