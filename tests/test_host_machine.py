"""This host, probed: numbers that make sense, kept for a day, and what is predicted from them."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.backends.cpu import host_machine
from hotloop.backends.cpu.kernel_probe import OpCase
from hotloop.backends.cpu.probes import LaunchProbe
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.cli.main import main
from hotloop.machine.hardware import Hardware
from hotloop.machine.load import find, from_toml, to_toml
from hotloop.predict import host
from hotloop.predict.cpu import (
    POSITIONS,
    Costs,
    Kernels,
    Shape,
    costs_of,
    fit,
    op_cases,
    shape,
    stream_cases,
)
from hotloop.predict.models import open_shapes
from hotloop.predict.prediction import Programs, predict, team
from hotloop.util.errors import CacheError, UsageError


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and small probes."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    monkeypatch.setattr(host_machine, "MEMORY_BYTES", 8 << 20)
    monkeypatch.setattr(host_machine, "READS", 1)
    monkeypatch.setattr(host_machine, "LONG", 1e-5)
    return tmp_path


@pytest.mark.usefixtures("quick")
def test_the_probes_find_a_machine_that_can_be_written_and_read() -> None:
    probed = host_machine.probe_host()
    again = from_toml(to_toml(probed), "host")
    assert again.kind == "cpu"
    assert again["cores"] >= 1
    for threads in host_machine.thread_counts(int(again["cores"])):
        assert again.at("memory_bandwidth", threads) > 1e8
        assert again.at("start", threads) < 1
    assert again["memory_size"] > 1e8


def test_numbers_of_threads() -> None:
    assert host_machine.thread_counts(1) == [1]
    assert host_machine.thread_counts(2) == [1, 2]
    assert host_machine.thread_counts(6) == [1, 2, 4, 6]


def test_cache_sizes_as_linux_writes_them(tmp_path: Path) -> None:
    rows = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2048K"),
            ("3", "Unified", "many"), ("4", "Unified", "1K")]  # fmt: skip
    for i, (level, kind, size) in enumerate(rows):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert host_machine.cache_sizes(tmp_path) == {"l1_size": 48 << 10, "l2_size": 2 << 20}
    assert host_machine.cache_sizes(tmp_path / "none") == {}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_launch_probe_ends_and_measures_time(threads: int) -> None:
    crew = Team(threads)
    try:
        probe = LaunchProbe(crew)
        assert 0 <= probe.launch_seconds() < 1
        assert 0 <= probe.launch_seconds(2e-5) < 1
        assert 0 < probe.barrier_seconds() < 1
    finally:
        crew.close()


def test_the_host_is_probed_once_a_day(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[int] = []

    def probe(progress: object) -> Hardware:
        probes.append(1)
        return find("m4-max")

    monkeypatch.setattr(host_machine, "probe_host", probe)
    assert host.known_host() is None
    assert host.find_machine("host")["cores"] == 12
    assert host.find_machine("host")["cores"] == 12
    assert len(probes) == 1
    host.find_machine("host", refresh=True)
    assert len(probes) == 2
    (path,) = (quick / "machines").iterdir()
    path.write_text("damaged")
    host.find_machine("host")
    assert len(probes) == 3
    old = time.time() - 2 * host.MAX_AGE
    os.utime(path, (old, old))
    host.find_machine("host")
    assert len(probes) == 4


@pytest.mark.usefixtures("quick")
def test_a_cache_that_cannot_be_written_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "machines").write_text("a file")
    monkeypatch.setattr(host_machine, "probe_host", lambda progress: find("m4-max"))
    with pytest.raises(CacheError, match="cannot be written"):
        host.find_machine("host")


# The cost model ----------------------------------------------------------------------------------


def programs(threads: int = 4) -> Programs:
    return Programs(open_shapes("llama-3.2-1b", "q4_0"), 1024, threads)


def test_shapes_count_what_the_rungs_differ_in() -> None:
    made, load = programs(), Workload(1024)
    shapes = {rung: shape(made[rung], load) for rung in ("ops", "fused", "looped", "tokens")}
    assert len({round(found.nbytes) for found in shapes.values()}) == 1
    assert [len(found.launches) for found in shapes.values()] == [made.calls["ops"], 19, 1, 1]
    assert shapes["looped"].stages == shapes["fused"].stages > 3 * shapes["tokens"].stages


def test_more_threads_and_less_waking_are_faster() -> None:
    epyc = find("epyc-9654")
    tok_s = [predict(programs(n), epyc).tok_s for n in (1, 8, 96)]
    assert tok_s == sorted(tok_s)
    ladder = [predict(programs(96), epyc, schedule=s).tok_s for s in ("ops", "fused", "tokens")]
    assert ladder == sorted(ladder)
    with pytest.raises(UsageError, match="m4-max has 12 cores, not 13"):
        team(find("m4-max"), 13)


def test_what_a_cache_holds_is_read_at_its_speed() -> None:
    epyc = find("epyc-9654")
    assert costs_of(epyc, 96, 100e6).stream == epyc["l3_bandwidth"]
    assert costs_of(epyc, 96, 300e6).stream == epyc["memory_bandwidth"]


def test_the_fit_finds_the_costs_that_made_the_times() -> None:
    made, load = programs(), Workload(1024)
    shapes = {rung: shape(made[rung], load) for rung in ("ops", "fused", "looped", "tokens")}
    plain = Costs(20e9, 1.5e-6, 0, 0, threads=4)

    def mean(found: Shape) -> float:
        return found.seconds(plain) / len(found.launches)

    true = replace(
        plain,
        launch_short=2e-5,
        launch_long=8e-5,
        short=mean(shapes["ops"]),
        long=mean(shapes["fused"]),
    )
    measured = {rung: found.seconds(plain) for rung, found in shapes.items()}
    measured["ops"] += len(shapes["ops"].launches) * 2e-5
    measured["fused"] += len(shapes["fused"].launches) * 8e-5
    fitted = fit(measured, shapes, 20e9, 4, Kernels())
    for name in ("stream", "stage", "launch_short", "launch_long", "short", "long"):
        assert getattr(fitted, name) == pytest.approx(getattr(true, name), rel=1e-6), name
    assert fitted.launch(0) == fitted.launch_short
    assert fitted.launch(1) == fitted.launch_long


def test_times_that_no_cost_explains_give_costs_of_nothing() -> None:
    made, load = programs(), Workload(1024)
    shapes = {rung: shape(made[rung], load) for rung in ("ops", "fused", "looped", "tokens")}
    fitted = fit(dict.fromkeys(shapes, 1e-6), shapes, 20e9, 4, Kernels())
    assert (fitted.stage, fitted.launch_short, fitted.launch_long) == (0, 0, 0)


def test_kernels_take_what_was_probed_of_them() -> None:
    """Products stream at their kernel's rate, other ops cost cores, each its own."""
    made, load = programs(), Workload(1024)
    found = shape(made["tokens"], load)
    streams = dict.fromkeys(stream_cases([found]), 10000000000.0)
    rows = dict.fromkeys(op_cases([found]), 1e-06)
    memory = Costs(40e9, 0, 0, 0, threads=4)
    assert found.seconds(memory) == pytest.approx(found.nbytes / 40e9)
    streamed = replace(memory, kernels=Kernels(streams=streams))
    slow = sum(p.weight_bytes + p.cache_bytes for p in found.pieces if p.stream)
    assert slow > 0
    assert found.seconds(streamed) == pytest.approx(found.nbytes / 10e9, rel=1e-2)
    twice = replace(memory, kernels=Kernels(streams=streams).faster(2.0))
    assert found.seconds(twice) == pytest.approx(found.nbytes / 20e9, rel=1e-2)
    computing = replace(memory, kernels=Kernels(rows=rows))
    alone = replace(computing, threads=1)
    assert found.seconds(memory) < found.seconds(computing) < found.seconds(alone)
    each = next(piece for piece in found.pieces if not piece.tiles)
    assert each.seconds(computing) == each.seconds(alone) == each.rows * 1e-6


def test_attention_costs_by_the_line_between_two_positions() -> None:
    made = programs()
    found = shape(made["tokens"], Workload(1024))
    spec = next(piece.spec for piece in found.pieces if piece.spec.name == "attend")
    low, high = POSITIONS
    rows = {OpCase(spec, low): 1e-6, OpCase(spec, high): 3e-6}
    kernels = Kernels(rows)
    assert kernels.row(spec, low) == pytest.approx(1e-6)
    assert kernels.row(spec, high + (high - low)) == pytest.approx(5e-6)
    assert 0 < kernels.row(spec, 1) < 1e-6


def test_a_cpu_is_predicted_by_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["predict", "llama-3.2-1b", "-M", "m4-max", "--weights", "q4_0"]
    assert main([*arguments, "-t", "4", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schedule"] == "tokens"
    assert 0 < values["share"] < 1
    assert main([*arguments, "--trace", str(tmp_path / "x.json")]) == 2
    assert "has no trace to write" in capsys.readouterr().err
