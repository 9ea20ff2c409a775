"""Machines as data: every one that comes with hotloop loads, and bad files are one sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.cli.main import main
from hotloop.machine.hardware import FIELDS
from hotloop.machine.load import find, from_toml, shipped, to_toml
from hotloop.machine.quantity import UNITS, parse, show
from hotloop.predict import host
from hotloop.util.errors import MachineError, UsageError

NAMES = ("dgx-h100", "h200", "b200", "mi300x", "sn40l-x8", "sn40l-x16", "epyc-9654", "m4-max")


def test_the_promised_machines_are_there() -> None:
    assert set(NAMES) <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_every_machine_loads_and_every_number_has_a_source(name: str) -> None:
    machine = find(name)
    assert machine.name == name
    assert machine.title
    for key, quantity in machine.quantities.items():
        assert len(quantity.source) > 3, key
        assert quantity.dimension == FIELDS[key.partition(".")[0]].dimension
        assert quantity.low is None or quantity.low <= quantity.value <= (quantity.high or 0)
        assert quantity.basis != "fitted" or quantity.low is not None, key


def test_the_sockets_of_the_paper() -> None:
    sixteen, eight, fast = map(find, ("sn40l-x16", "sn40l-x8", "sn40l-x16-fast"))
    assert sixteen["memory_bandwidth"] * sixteen["sockets"] == pytest.approx(25.6e12)
    assert eight["memory_bandwidth"] * eight["sockets"] == pytest.approx(12.8e12)
    assert fast["memory_bandwidth"] == 1.8e12
    assert sixteen["onchip_size"] == 1040 * 512 * 1024
    h100 = find("dgx-h100")
    assert h100["memory_bandwidth"] * h100["sockets"] == pytest.approx(24e12)


def test_numbers_by_threads_lie_on_lines() -> None:
    epyc = find("epyc-9654")
    assert epyc.at("memory_bandwidth", 1) == 25e9
    assert epyc.at("memory_bandwidth", 12) == 300e9
    assert 25e9 < epyc.at("memory_bandwidth", 6) < 300e9
    assert epyc.at("memory_bandwidth", 500) == epyc["memory_bandwidth"] == 378e9
    assert epyc.at("cores", 3) == 96


@pytest.mark.parametrize("unit", UNITS)
def test_units_read_back(unit: str) -> None:
    dimension, factor = UNITS[unit]
    assert parse(f"5 {unit}", dimension) == pytest.approx(5 * factor)
    assert parse(show(5 * factor, dimension), dimension) == pytest.approx(5 * factor, rel=1e-3)


MINE = """
name = "mine"
title = "My own"
base = "dgx-h100"

[memory_bandwidth]
value = "2 TB/s"
source = "I measured it"
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    machine = find(str(path))
    assert (machine.name, machine["memory_bandwidth"], machine.kind) == ("mine", 2e12, "gpu")
    assert machine["start"] == find("dgx-h100")["start"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[memory_bandwidth]", "[memory_bandwith]", "did you mean memory_bandwidth?"),
        ('"2 TB/s"', '"2 TB"', "memory_bandwidth is '2 TB' where a rate such as 3.35 TB/s is"),
        ('"2 TB/s"', '"fast"', "'fast' where a rate"),
        ('"2 TB/s"', "2", "'2' where a rate"),
        ('"2 TB/s"', "true", "True where a rate"),
        (
            '[memory_bandwidth]\nvalue = "2 TB/s"',
            '[sockets]\nvalue = "1.5"',
            "where a whole number",
        ),
        ('"2 TB/s"', '"0 TB/s"', "'0 TB/s' where a rate"),
        ('"2 TB/s"', '"-2 TB/s"', "'-2 TB/s' where a rate"),
        ('"2 TB/s"', '"1e999 TB/s"', "where a rate"),
        ('source = "I measured it"', "", "lacks source; every number has its source"),
        ('value = "2 TB/s"', "", "lacks value"),
        ('"I measured it"', '" "', "the source of"),
        ('"I measured it"', '"x"\nbasis = "felt"', "the basis of .* is 'felt'"),
        ('"I measured it"', '"x"\nrange = ["3 TB/s", "4 TB/s"]', "outside of its own range"),
        ('"I measured it"', '"x"\nrange = "3 TB/s"', "where two values are expected"),
        ('"I measured it"', '"x"\nsorce = "y"', "did you mean source?"),
        ('base = "dgx-h100"', 'base = "dgx"', "base is 'dgx'; it must be one of"),
        ('base = "dgx-h100"', 'kind = "gpu"', "lacks .sockets. .*which a gpu machine needs"),
        ('base = "dgx-h100"', 'kind = "abacus"', "kind is 'abacus'; it must be one of cpu"),
        ('base = "dgx-h100"', 'base = "dgx-h100"\nkind = "cpu"', "its base dgx-h100 is 'gpu'"),
        ('title = "My own"', "", 'lacks title = "…"'),
        ("[memory_bandwidth]", "[memory_bandwidth.4]", "^$"),
        ("[memory_bandwidth]", "[program_load]", "a gpu machine has no program_load"),
        ("[memory_bandwidth]", "[[memory_bandwidth]]", "must be a section"),
        ("name =", "name", "is not valid TOML"),
    ],
)
def test_bad_files_are_one_sentence(old: str, new: str, message: str) -> None:
    text = MINE.replace(old, new)
    assert text != MINE
    if message == "^$":
        assert from_toml(text, "mine.toml").at("memory_bandwidth", 9) == 2e12
        return
    with pytest.raises(MachineError, match=message) as caught:
        from_toml(text, "mine.toml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("mine.toml")


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean dgx-h100\?"):
        find("dgx-h10")
    with pytest.raises(MachineError, match="cannot be read"):
        find(str(tmp_path / "no.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MachineError, match="not UTF-8"):
        find(str(tmp_path / "binary.toml"))


@pytest.mark.parametrize("name", shipped())
def test_machines_are_written_as_they_are_read(name: str) -> None:
    machine = find(name)
    again = from_toml(to_toml(machine), name)
    assert (again.name, again.title, again.kind) == (machine.name, machine.title, machine.kind)
    assert again.quantities.keys() == machine.quantities.keys()
    for key, quantity in machine.quantities.items():
        assert again.quantities[key].source == quantity.source
        assert again.quantities[key].value == pytest.approx(quantity.value, rel=1e-3)
        assert (again.quantities[key].low is None) == (quantity.low is None)
        if quantity.low is not None:
            assert again.quantities[key].low == pytest.approx(quantity.low, rel=1e-3)


def test_what_if() -> None:
    machine = find("sn40l-x16").with_settings({"memory_bandwidth": "1.8 TB/s"})
    assert machine["memory_bandwidth"] == 1.8e12
    with pytest.raises(UsageError, match=r"memory_bandwidth is '1.8 TB' where a rate"):
        machine.with_settings({"memory_bandwidth": "1.8 TB"})
    with pytest.raises(UsageError, match="has no field 'speed'"):
        machine.with_settings({"speed": "1 TB/s"})


def test_the_command_lists_the_same_names_whether_the_host_is_probed_or_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A cache of the test's own: another test may probe the host into the user's meanwhile.
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    for probed in (False, True):
        if probed:
            mine = replace(find("epyc-9654"), name=host.HOST)
            monkeypatch.setattr(host, "known_host", lambda mine=mine: mine)
        assert main(["machines"]) == 0
        listed = capsys.readouterr().out
        assert all(name in listed for name in NAMES)
        assert ("not probed yet" in listed) is not probed
        assert main(["machines", "--json"]) == 0
        entries = json.loads(capsys.readouterr().out)
        assert [entry["name"] for entry in entries] == [host.HOST, *shipped()]
        assert bool(entries[0]["quantities"]) is probed


def test_the_command_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "sn40l-x16"]) == 0
    assert "25.6 TB/s for 16" in " ".join(capsys.readouterr().out.split())
    assert main(["machines", "dgx-h100", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["quantities"]["start"]["value"] == pytest.approx(1.3e-6)
    assert main(["machines", "dgx-h100", "--refresh"]) == 2
    assert "--refresh goes with host" in capsys.readouterr().err
    assert main(["machines", "dgx"]) == 2
    assert "error: no machine is called 'dgx'" in capsys.readouterr().err
