"""The page of `hotloop report`: complete, harmless whatever names it is given, and true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import visit
from shell import Shell
from waiting import wait_until

from hotloop import load
from hotloop.bench.report import measured_report
from hotloop.compiler import SCHEDULES
from hotloop.machine.load import find
from hotloop.predict.models import open_shapes
from hotloop.predict.prediction import Programs
from hotloop.predict.report import predicted_report
from hotloop.report.page.data import LINES, Report, launch_cost
from hotloop.report.page.fill import html
from hotloop.report.timeline import Timeline, middle_layers
from hotloop.util.remarks import Remark

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TINY = Path(__file__).parent / "data" / "tiny" / "llama"
HOSTILE = "</script><script>document.title='owned'</script><!--\u2028{{data}}&amp;$x^{2}$"


@pytest.fixture(scope="module")
def predicted() -> Report:
    return predicted_report(Programs(open_shapes("llama-3.2-1b"), 1024), find("sn40l-x16"))


@pytest.fixture(scope="module")
def measured() -> Iterator[Report]:
    with load(TINY, threads=2, context=64) as model:
        yield measured_report(model, rounds=1, tokens=4)


@pytest.fixture(params=["predicted", "measured"])
def report(request: pytest.FixtureRequest) -> Report:
    made: Report = request.getfixturevalue(request.param)
    return made


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def timeline_of(report: Report, name: str) -> Timeline:
    found = next(rung.timeline for rung in report.rungs if rung.name == name)
    assert found is not None
    return found


def hostile(report: Report) -> Report:
    """The same with names as a file's author might choose them."""
    first, *passes = report.passes
    bad = replace(first, name=HOSTILE, text=HOSTILE + "\n" + first.text)
    worse = replace(bad, remarks=(Remark("fuse", "missed", HOSTILE, HOSTILE),))
    return replace(
        report, model=HOSTILE, machine=HOSTILE, passes=(bad, worse, *passes), notes=(HOSTILE,)
    )


# the data ----------------------------------------------------------------------------------------


def test_every_rung_is_there(report: Report) -> None:
    assert [rung.name for rung in report.rungs] == list(SCHEDULES)
    for rung in report.rungs:
        line = rung.timeline
        assert line is not None
        assert line.length > 0
        assert rung.ms > 0
        assert rung.rows
        assert {s.lane for s in line.slices} <= set(range(len(line.lanes)))
        for s in line.slices:
            assert s.length > 0
            assert s.start >= -1e-6
            assert s.start + s.length <= line.length * 1.001 or report.source == "measured"


def test_all_rungs_show_the_same_bytes(measured: Report) -> None:
    """Weights are read where they are worked on, so the same layers read the same bytes."""
    bytes_shown = {
        name: sum(s.nbytes for s in timeline_of(measured, name).slices)
        for name in ("ops", "fused", "looped")
    }
    assert max(bytes_shown.values()) == pytest.approx(min(bytes_shown.values()))


def test_bandwidth_is_zero_between_calls_only(predicted: Report) -> None:
    """The picture that the paper is about."""
    assert (timeline_of(predicted, "fused").bandwidth(400) == 0).mean() > 0.1
    assert (timeline_of(predicted, "ops").bandwidth(400) == 0).mean() > 0.5
    assert (timeline_of(predicted, "looped").bandwidth(400) > 0).all()


def test_bandwidth_keeps_all_bytes(report: Report) -> None:
    for rung in report.rungs:
        line = rung.timeline
        assert line is not None
        inside = sum(s.nbytes for s in line.slices if s.start + s.length <= line.length)
        whole = line.bandwidth(97).sum() * line.length / 97 * 1e3
        assert whole >= inside * (1 - 1e-9)


def test_the_table_of_a_token_adds_up_to_it(predicted: Report) -> None:
    for rung in predicted.rungs:
        assert sum(row.us for row in rung.rows) == pytest.approx(1e3 * rung.ms)
        # Of one socket; what is sent ahead, before the first token ends, is left out.
        sent = sum(row.nbytes for row in rung.rows)
        assert sent == pytest.approx(rung.nbytes / 16, rel=0.02)
    first = {rung.name: rung.rows[0].name for rung in predicted.rungs}
    assert first["ops"].startswith("launch: program load @")
    assert first["looped"] == first["tokens"] == "memory: @layer linear"


def test_layers_are_those_in_the_middle() -> None:
    cut = middle_layers(Programs(open_shapes("llama-3.1-8b"), 1024)["fused"])
    assert cut.layers == 3
    assert 0.4 < cut.begin < cut.end < 0.6


def test_what_a_launch_costs() -> None:
    assert launch_cost({"ops": (3.0, 201), "looped": (1.0, 1)}) == pytest.approx(10.0)
    assert launch_cost({"ops": (1.0, 201), "looped": (2.0, 1)}) == 0
    assert launch_cost({"ops": (2.0, 1), "looped": (1.0, 1)}) == 0


def test_passes_with_what_they_said(report: Report) -> None:
    names = [view.name for view in report.passes]
    assert names[:5] == ["graph", "fuse", "lift", "loop", "pipeline"]
    assert names[-1] == "partition"
    said = {view.name: [remark.pass_name for remark in view.remarks] for view in report.passes}
    assert set(said["fuse"]) == {"fuse"}
    assert set(said["loop"]) == set(said["loop tokens"]) == {"loop"}
    assert all(len(view.text.splitlines()) <= LINES for view in report.passes)


def test_the_what_if_formula_agrees_with_the_simulation(predicted: Report) -> None:
    """A closed formula cannot know what hides behind what: it is a first estimate."""
    machine = find("sn40l-x16")
    faster = machine.with_values(memory_bandwidth=2 * machine["memory_bandwidth"])
    again = predicted_report(Programs(open_shapes("llama-3.2-1b"), 1024), faster)
    for rung, other in zip(predicted.rungs, again.rungs, strict=True):
        before = rung.nbytes / predicted.gbps / 1e6
        estimate = max(before / 2, rung.ms - before / 2)
        assert estimate == pytest.approx(other.ms, rel=0.4)


# the page ----------------------------------------------------------------------------------------


def test_page_asks_nobody(report: Report) -> None:
    page = html(report)
    assert "default-src 'none'" in page
    page = re.sub(r'id="data">.*?</script>', "", page, flags=re.S)
    loads = re.findall(r"""\b(?:src|href)\s*=\s*["']?([^\s"'>]*)""", page)
    assert loads
    assert all(target.startswith(("#", "data:")) for target in loads)
    outside = [url for url in re.findall(r"https?://[^\s\"'<]+", page) if "w3.org" not in url]
    assert outside == []
    assert "fetch(" not in page
    assert "@import" not in page
    assert "{{" not in page


def test_page_holds_its_data(report: Report) -> None:
    data = data_of(html(report))
    assert data["model"] == report.model
    assert [rung["name"] for rung in data["rungs"]] == list(SCHEDULES)  # type: ignore[attr-defined, index]


def test_page_is_small(report: Report) -> None:
    assert len(html(report)) < 1_000_000


def test_hostile_names_stay_text(report: Report) -> None:
    plain, page = html(report), html(hostile(report))
    assert page.count("</script>") == plain.count("</script>")
    assert page.count("<!--") == plain.count("<!--")
    data = data_of(page)
    assert data["model"] == HOSTILE
    assert "\u2028" not in re.sub(r"<title>.*?</title>", "", page)


# in a browser ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_driving_the_page(
    browser: Browser, predicted: Report, tmp_path: Path, scheme: str, width: int
) -> None:
    from playwright.sync_api import expect

    file = tmp_path / "report.html"
    file.write_text(html(hostile(predicted)), encoding="utf-8")
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    with visit(browser, file.as_uri(), silent=True, **look) as page:
        assert page.title() != "owned"
        assert page.locator("#model").text_content() == HOSTILE
        wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width)
        expect(page.locator("canvas")).to_have_count(len(SCHEDULES))
        # What if launches were free: no rung is slower, and ops gains most.
        bars = page.locator("#bars")
        before = bars.text_content()
        page.get_by_label("A launch costs").fill("0")
        expect(bars).to_contain_text("then")
        page.get_by_role("button", name="As it is").click()
        wait_until(lambda: bars.text_content() == before)
        # Tables sort, by the keyboard too.
        page.locator("#rungs th button", has_text="steps/s").focus()
        firsts = []
        for order in ("descending", "ascending"):
            page.keyboard.press("Enter")
            expect(page.locator(f"#rungs th[aria-sort={order}]")).to_have_text("steps/s")
            firsts.append(page.locator("#rungs tbody td").first.text_content())
        assert firsts[0] != firsts[1]
        # Zooming changes the picture.
        picture = "document.querySelector('canvas').toDataURL()"
        drawn = "(canvas => canvas.width === canvas.clientWidth)(document.querySelector('canvas'))"
        wait_until(lambda: page.evaluate(drawn))
        page.locator("canvas").first.focus()
        seen = [page.evaluate(picture)]
        for key in ("+", "ArrowRight", "0"):
            page.keyboard.press(key)
            wait_until(lambda: page.evaluate(picture) not in seen)
            seen.append(page.evaluate(picture))
        lift = page.locator("summary", has_text="lift")
        assert lift.text_content() == "lift changed nothing"
        # A pass shows what was before, and after.
        last = page.locator("details").last
        last.locator("summary").click()
        expect(last.locator("pre")).to_have_count(2)
        expect(last.locator("pre").last).to_have_text(re.compile("^program"))


def test_a_page_without_timelines_offers_no_zoom(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    made = predicted_report(Programs(open_shapes("llama-3.2-1b"), 128, 96), find("epyc-9654"))
    file.write_text(html(made), encoding="utf-8")
    with visit(browser, file.as_uri(), silent=True) as page:
        seen = page.locator("#timelines").inner_text()
    assert seen.split("\n", 1)[1].strip() == "There are none: see the notes."


# pictures and the command line -------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(predicted: Report, tmp_path: Path, kind: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    from hotloop.report.plot import plot

    file = tmp_path / "lines"
    plot(hostile(predicted), file, kind)
    assert file.read_bytes().startswith(begin)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_command(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    argv = ("llama-3.2-1b", "-M", "dgx-h100", "-c", "512", "-o", str(out))
    assert shell("report", *argv) == 0, shell.err
    assert shell.out == f"wrote {out}\n"
    data = data_of(out.read_text("utf-8"))
    assert "library" in [rung["name"] for rung in data["rungs"]]  # type: ignore[attr-defined]


def test_a_cpu_has_no_timelines_and_says_so(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert shell("report", "llama-3.2-1b", "-M", "epyc-9654", "-o", str(out)) == 0, shell.err
    data = data_of(out.read_text("utf-8"))
    assert all(rung["timeline"] is None for rung in data["rungs"])  # type: ignore[attr-defined]
    assert "no timeline" in str(data["notes"])
    assert shell("report", "llama-3.2-1b", "-M", "epyc-9654", "--png", str(out)) == 2
    assert "no timelines to draw" in shell.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-M", "h200"), "give a MODEL to simulate"),
        (("-b", "2"), "what is measured is one sequence"),
        (("llama-3.1-8b", "-M", "h2000"), "no machine is called 'h2000'"),
        (("llama-3.1-8b", "-M", "h200", "--rounds", "2"), "about what is measured"),
        (("llama-3.1-8b", "-M", "h200", "--kv-cache", "q8"), "about what is measured"),
        (("llama-3.1-8b", "--activations", "f32"), "about what is measured"),
    ],
)
def test_wrong_usage(shell: Shell, argv: tuple[str, ...], message: str) -> None:
    assert shell("report", *argv) == 2
    assert message in shell.err
