"""This host, probed: numbers that make sense, kept for a day, and what is predicted from them."""

import json
import math
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hotloop.backends.cpu import host_machine
from hotloop.backends.cpu.kernel_probe import OpCase
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.cli.main import main
from hotloop.machine.hardware import Hardware
from hotloop.machine.load import find, from_toml, to_toml
from hotloop.predict import host, reference
from hotloop.predict.cpu import (
    POSITIONS,
    Costs,
    Kernels,
    costs_of,
    op_cases,
    shape,
    stream_cases,
)
from hotloop.predict.models import open_shapes
from hotloop.predict.prediction import Programs, predict, team
from hotloop.util.errors import CacheError, UsageError

TINY = Path(__file__).parent / "data" / "tiny" / "llama"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and small probes."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    monkeypatch.setattr(host_machine, "MEMORY_BYTES", 8 << 20)
    monkeypatch.setattr(host_machine, "READS", 1)
    monkeypatch.setattr(host, "ROUNDS", 1)
    monkeypatch.setattr(host, "PROBE_SECONDS", math.inf)
    monkeypatch.setattr(host, "REFERENCE_ROUNDS", 2)
    monkeypatch.setattr(reference, "LONG", 64)
    monkeypatch.setattr(reference, "TOKENS", 2)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    changes = {**small, "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 64}
    monkeypatch.setattr(reference, "CONFIG", {**reference.CONFIG, **changes})
    return tmp_path


@pytest.mark.usefixtures("quick")
def test_the_probes_find_a_machine_that_can_be_written_and_read() -> None:
    probed = host.host_machine()
    again = from_toml(to_toml(probed), "host")
    assert host.known_host() == again
    assert again.kind == "cpu"
    assert again["cores"] >= 1
    for threads in host_machine.thread_counts(int(again["cores"])):
        assert again.at("memory_bandwidth", threads) > 1e5  # had it to wait for a minute
        assert 0 <= again.at("start", threads) < 1
        costs = costs_of(again, threads, 1e6)
        assert len(costs.launches) == 3
        assert min(work for work, _ in costs.launches) > 0
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


@pytest.mark.usefixtures("quick")
def test_stages_and_launches_are_what_rungs_differ_by(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Team(2)
    made = reference.Reference(crew)
    try:
        made.measure()
    finally:
        made.close()
        crew.close()
    assert all(seconds >= 0 for seconds in asdict(made.boundaries).values())
    ops = len(made.shapes["ops", reference.SHORT].launches)
    fused = len(made.shapes["fused", reference.SHORT].launches)
    assert fused == 3 + 3  # layers, and embedding, head, end
    seconds = {"looped": 1e-3, "pipelined": 1e-3}
    seconds |= {"ops": 1e-3 + (ops - 1) * 2e-5, "fused": 1e-3 + (fused - 1) * 5e-5}
    monkeypatch.setattr(
        made, "samples", {key: [seconds[key[0]], 1.0, seconds[key[0]]] for key in made.samples}
    )
    found = made.boundaries
    assert found.start_short == pytest.approx(2e-5)
    assert found.start == found.start_long == pytest.approx(5e-5)
    assert found.start_work == pytest.approx(1e-3 / fused)
    assert found.stage_sync == 0  # nothing is saved


def test_the_host_is_probed_once_a_day(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[int] = []

    def probe(progress: object) -> Hardware:
        probes.append(1)
        return find("m4-max")

    monkeypatch.setattr(host_machine, "probe_host", probe)
    monkeypatch.setattr(host, "_boundaries", lambda threads: [])
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
    monkeypatch.setattr(host, "_boundaries", lambda threads: [])
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


def test_a_launch_costs_by_the_line_between_those_that_were_measured() -> None:
    costs = Costs(20e9, 0, ((1e-5, 2e-5), (1e-4, 6e-5), (3e-4, 1e-5)))
    works = (0.0, 1e-5, 5.5e-5, 1e-4, 2e-4, 1.0)
    expected = (2e-5, 2e-5, 4e-5, 6e-5, 3.5e-5, 1e-5)
    assert [costs.launch(work) for work in works] == pytest.approx(expected)
    assert Costs(20e9, 0).launch(1e-4) == 0
    epyc = costs_of(find("epyc-9654"), 96, 1e9)
    assert epyc.launch(1e-6) == epyc.launch(1.0) == find("epyc-9654")["start"]


@pytest.mark.usefixtures("quick")
def test_kernels_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Programs(open_shapes(str(TINY)), 64, 1)
    shapes = [made.shape("tokens", Workload(64))]
    asked: list[int] = []

    def progress(done: int, total: int | None, what: str) -> None:
        asked.append(done)

    found = host.host_kernels(shapes, 1, progress)
    assert set(found.rows) == set(op_cases(shapes))
    assert set(found.streams) == set(stream_cases(shapes))
    assert min(*found.rows.values(), *found.streams.values()) > 0
    probes = len(asked)
    assert probes == len(found.rows) + len(found.streams)
    assert host.host_kernels(shapes, 1, progress) == found
    assert len(asked) == probes
    more = [*shapes, made.shape("tokens", Workload(64, batch=2))]
    host.host_kernels(more, 1, progress)
    assert len(asked) > probes
    next(host._path(".json").parent.glob("*.json")).write_text("[1]")
    monkeypatch.setattr(host, "PROBE_SECONDS", -1.0)
    assert host.host_kernels(shapes, 1) == Kernels()  # too late for any


def test_kernels_take_what_was_probed_of_them() -> None:
    """Products stream at their kernel's rate, other ops cost cores, each its own."""
    made, load = programs(), Workload(1024)
    found = shape(made["tokens"], load)
    streams = dict.fromkeys(stream_cases([found]), 10000000000.0)
    rows = dict.fromkeys(op_cases([found]), 1e-06)
    memory = Costs(40e9, 0, threads=4)
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


def test_the_commands_probe_the_kernels_of_this_host(
    quick: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [str(TINY), "-M", "host", "-c", "64", "-t", "1"]
    assert main(["predict", *arguments, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["machine"] == "host"
    assert values["tok_s"] > 0
    (kept,) = (quick / "machines").glob("*.json")
    probed = len(json.loads(kept.read_text()))
    assert main(["predict", *arguments, "--set", "memory_bandwidth=1000 TB/s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tok_s"] > 0.99 * values["tok_s"]
    page = tmp_path / "page.html"
    config = str(TINY / "config.json")
    assert main(["report", config, "-c", "64", "-t", "1", "-o", str(page)]) == 0
    assert page.exists()
    assert len(json.loads(kept.read_text())) > probed
