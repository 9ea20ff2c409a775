"""Time stamps of stages: complete, ordered, and absent where nobody asked for them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mini import mini_graph
from rich.table import Table
from shell import Shell
from test_codegen import MACHINE

from hotloop import Model, load
from hotloop.backends.cpu import jit
from hotloop.backends.cpu.codegen import generate
from hotloop.backends.cpu.places import place_states, place_weights, place_work
from hotloop.backends.cpu.profile import EVENT, FIELDS
from hotloop.bench.profile import ProfileResult, measure
from hotloop.bench.table import render_profile
from hotloop.cli.console import print_parts, stdout
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.lang import Target
from hotloop.lang.target import AARCH64, X86_64
from hotloop.report.counts import traffic
from hotloop.report.profile import PHASES, by_token, profile, sites
from hotloop.report.trace import chrome_trace
from hotloop.util.errors import HotloopError, UsageError

TINY = Path(__file__).parent / "data" / "tiny" / "llama"
TOKENS = 5
TIMES = FIELDS[3:]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(TINY, threads=3, context=64) as made:
        yield made


@pytest.fixture(scope="module", params=SCHEDULES)
def profiled(request: pytest.FixtureRequest, model: Model) -> Model:
    """Each rung in turn, after a generation of TOKENS tokens."""
    made = model.with_schedule(request.param).profiled(TOKENS)
    made.time_decode([1, 2, 3], TOKENS)
    return made


def tokens_seen(model: Model) -> int:
    """With more threads than cores, one may sleep through the last tokens of a generation."""
    seen, rest = divmod(model.events().shape[1], len(sites(model.program)))
    assert rest == 0
    assert seen == TOKENS or (model.schedule == "tokens" and 1 <= seen < TOKENS)
    return seen


def module_text(schedule: str, target: Target, profiled: bool) -> str:
    graph = mini_graph()
    program = compile_graph(graph, MACHINE, schedule).program
    places = place_weights(graph), place_states(graph), place_work(program)
    return str(generate(program, *places, target, profiled=profiled))


def test_every_pass_of_every_thread_is_there(profiled: Model) -> None:
    events = profiled.events()
    assert events.dtype == EVENT
    assert events.shape == (3, tokens_seen(profiled) * len(sites(profiled.program)))


def test_all_tokens_pass_the_same_stages(profiled: Model) -> None:
    """The number of a stage at a site never changes; sites of one stage have one number."""
    passes, places = by_token(profiled.program, profiled.events()), sites(profiled.program)
    assert (passes["stage"] == passes["stage"][:1, :1]).all()
    found = passes["stage"][0, 0].tolist()
    keys = [(site.kernel, site.stage) for site in places]
    numbers = dict(zip(keys, found, strict=True))
    assert [numbers[key] for key in keys] == found
    assert len(set(numbers.values())) == len(numbers)


def test_epochs_count_from_zero(profiled: Model) -> None:
    for of_thread in profiled.events():
        for number in np.unique(of_thread["stage"]):
            epochs = of_thread["epoch"][of_thread["stage"] == number]
            launched = np.flatnonzero(epochs == 0)
            runs = [epochs[a:b] for a, b in pairwise([*launched, len(epochs)])]
            assert launched[0] == 0
            assert all(run.tolist() == list(range(len(run))) for run in runs)


def test_times_are_in_order(profiled: Model) -> None:
    events = profiled.events()
    for before, after in pairwise(TIMES):
        assert (events[before] <= events[after]).all()
    assert (events["end"][:, :-1] <= events["start"][:, 1:]).all()
    assert events["start"].min() == 0


def test_every_tile_is_computed_once(profiled: Model) -> None:
    passes, places = by_token(profiled.program, profiled.events()), sites(profiled.program)
    kernels = {kernel.name: kernel for kernel in profiled.program.kernels}
    for i, site in enumerate(places):
        tiles = passes["tiles"][..., i].sum(axis=0)
        assert (tiles == tiles[0]).all()
        assert (tiles[0] > 0) == (site.kernel in kernels)
    without = passes[passes["tiles"] == 0]
    assert (without["waited"] == without["end"]).all()


def test_the_parts_are_no_more_than_the_token(profiled: Model) -> None:
    made = profile(profiled.program, profiled.events())
    assert made.tokens == tokens_seen(profiled)
    assert made.threads == 3
    assert 0 < sum(made.phase(name) for name in PHASES) <= made.token
    assert made.outside >= 0
    for stage in made.stages:
        assert min(stage.claim, stage.wait, stage.each, stage.work) >= 0
        assert stage.work <= stage.span <= made.token
        assert stage.gbps is None or stage.gbps > 0


def test_bytes_are_those_that_a_token_reads(profiled: Model) -> None:
    made = profile(profiled.program, profiled.events())
    expected = traffic(profiled.program).weight_bytes
    assert sum(stage.nbytes for stage in made.stages) == expected


def test_profiled_tokens_are_the_same(model: Model) -> None:
    def ids(which: Model) -> list[int]:
        return [token.id for token in which.generate([5, 6, 7], max_tokens=TOKENS, stop_ids=())]

    assert ids(model.profiled(TOKENS)) == ids(model)


def test_a_buffer_that_ran_over_is_noticed(model: Model) -> None:
    small = model.profiled(2)
    small.time_decode([1], 3)
    with pytest.raises(HotloopError, match="profile fewer tokens"):
        small.events()
    small.time_decode([1], 2)
    assert small.events().shape[1] <= 2 * len(sites(small.program))


def test_a_model_without_stamps_says_so(model: Model) -> None:
    with pytest.raises(UsageError, match="no time stamps"):
        model.events()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", [X86_64, AARCH64], ids=lambda target: target.triple)
def test_code_has_stamps_only_where_asked(schedule: str, target: Target) -> None:
    """Taking the stamps out of the profiled code leaves the plain one: same blocks, same calls."""
    plain, stamped = (module_text(schedule, target, profiled) for profiled in (False, True))
    for sign in ("readcyclecounter", "cntvct_el0"):
        assert sign not in plain
    assert plain != stamped
    for kept in (" call ", " br ", " atomicrmw ", " cmpxchg ", "load atomic", "store atomic"):
        ours = [line for line in stamped.splitlines() if kept in line]
        stamps = [line for line in ours if "readcyclecounter" in line or "read_volatile" in line]
        assert len(ours) - len(stamps) == plain.count(kept), kept


@pytest.mark.parametrize(("target", "reads"), [(X86_64, "rdtsc"), (AARCH64, "CNTVCT_EL0")])
def test_the_clock_is_an_instruction(target: Target, reads: str) -> None:
    assert reads in jit.assembly(module_text("tokens", target, True), target)
    assert reads not in jit.assembly(module_text("tokens", target, False), target)


def test_sums_of_a_profile() -> None:
    """Two threads and two tokens of one stage that reads 96 rows of 32 weights in q4_0."""
    program = compile_graph(mini_graph(0), MACHINE, "pipelined").program
    places = sites(program)
    events = np.zeros((2, 2 * len(places)), EVENT)
    at = next(i for i, site in enumerate(places) if site.nbytes > 1000)
    for token in range(2):
        for thread in range(2):
            event = events[thread, token * len(places) + at]
            for name, us in zip(TIMES, (0, 1, 3, 6, 10 + 2 * thread), strict=True):
                event[name] = 1000 * (us + 20 * token)
            event["tiles"] = 1 + thread
    made = profile(program, events)
    stage = next(stage for stage in made.stages if stage.nbytes > 1000)
    assert (stage.claim, stage.wait, stage.each, stage.work) == (1, 2, 3, 5)
    assert (stage.span, stage.tiles, stage.nbytes) == (6, (1.0, 2.0), 96 * 18)
    assert stage.gbps == pytest.approx(96 * 18 / 6e3)
    assert (made.token, made.outside) == (16, 5)


def test_a_trace_has_the_form_that_perfetto_reads(profiled: Model) -> None:
    made = chrome_trace(profiled.program, profiled.events(), first=0, tokens=2)
    events = json.loads(json.dumps(made))["traceEvents"]
    names = [event for event in events if event["ph"] == "M"]
    assert [event["args"]["name"] for event in names[1:]] == ["thread 0", "thread 1", "thread 2"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(names) + len(slices) == len(events)
    assert {event["args"]["token"] for event in slices} == set(range(min(2, tokens_seen(profiled))))
    assert {event["cat"] for event in slices} >= {"stage", "claim", "work"}
    for event in slices:
        assert event["dur"] > 0
        assert event["pid"] == 1
        assert event["tid"] in range(3)
    for tid in range(3):
        check_nesting([event for event in slices if event["tid"] == tid])


def check_nesting(slices: list[dict[str, float]]) -> None:
    """Slices of one track lie inside each other or apart."""
    open_until: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-6
        open_until.append(end)


@pytest.fixture(scope="module")
def result(model: Model) -> ProfileResult:
    return measure(model, rounds=2, tokens=TOKENS)


def test_the_measurement_has_both_codes(result: ProfileResult) -> None:
    values = json.loads(json.dumps(result.to_json()))
    assert values["schedule"] == "tokens"
    assert len(result.plain_ms.values) == len(result.profiled_ms.values) == 2
    assert values["overhead"] > -1
    stages = values["profile"]["stages"]
    shares = sum(stage["share"] for stage in stages)
    outside = values["profile"]["outside_us"] / values["profile"]["token_us"]
    assert shares + outside == pytest.approx(1)
    assert stages[-1]["kernel"] == "token"


def held_up(result: ProfileResult) -> ProfileResult:
    """All times a hundred thousand times as long, as on a machine that stood still."""

    def longer(part: Any) -> Any:
        times = {k: 1e5 * v for k, v in vars(part).items() if isinstance(v, float)}
        return replace(part, **times)

    stages = tuple(longer(stage) for stage in result.profile.stages)
    return replace(result, profile=replace(longer(result.profile), stages=stages))


@pytest.mark.parametrize("change", [lambda result: result, held_up], ids=["seen", "held up"])
def test_the_table_fits_in_100_columns(
    result: ProfileResult, change: Callable[[ProfileResult], ProfileResult]
) -> None:
    from rich.console import Console

    result = change(result)
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        for part in render_profile(result):
            console.print(part)
    text = capture.get()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "…" not in text
    for expected in ("@layer %s0", "end of the token", "outside the stages", "GB/s", "interleaved"):
        assert expected in text


def test_no_number_of_a_wide_table_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("a", "b")
    table.columns[1].no_wrap = True
    table.add_row("x" * 60, "9" * 70)
    print_parts(stdout(), [table, "word " * 30])
    out = capsys.readouterr().out
    assert "9" * 70 in out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines()[-2:]) <= 100


def test_a_context_too_short_is_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="need a context of 116, and this one holds 64"):
        measure(model, tokens=100)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shell, trace = Shell(capsys), tmp_path / "trace.json"
    argv = ["bench", str(TINY), "-t", "1", "-c", "32", "--rounds", "1", "--tokens", "2"]
    options = ["--profile", "--schedule", "pipelined", "--trace", str(trace)]
    assert shell(*argv, *options) == 0
    assert "rung pipelined" in shell.out
    assert "@layer %s0" in shell.out
    assert json.loads(trace.read_text())["traceEvents"]
    assert shell(*argv, "--profile", "--json", "-") == 0
    assert json.loads(shell.out)["profile"]["tokens"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trace", "x"], "go with --profile"),
        (["--schedule", "ops"], "go with --profile"),
        (["--profile", "--rungs", "ops"], "choose it with --schedule"),
    ],
)
def test_options_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    shell = Shell(capsys)
    assert shell("bench", str(TINY), *options) == 2
    assert says in shell.err
