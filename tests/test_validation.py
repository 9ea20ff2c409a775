"""Published next to predicted: the rows that must be exact are, and the page says what the code."""

import json
import re
from pathlib import Path

import pytest

import paper
from hotloop.cli.main import main
from hotloop.predict.published import ROWS, Bench, Row
from hotloop.predict.validation import Result, Sensitivity, cells, markdown, validate

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {result.row.name: result for result in validate(sensitivity=False)}


def test_exact_rows_are_exact(results: dict[str, Result]) -> None:
    exact = [result for result in results.values() if result.row.role == "exact"]
    assert len(exact) == 6
    assert all(result.error == 0 for result in exact)


def test_fitted_rows_fit(results: dict[str, Result]) -> None:
    fitted = [result for result in results.values() if result.row.role == "fitted"]
    assert all(abs(result.error) < 0.01 for result in fitted)


def test_the_shape_of_the_paper(results: dict[str, Result]) -> None:
    """What held-out rows must show whatever the fit: published directions, not its numbers."""
    at = {name: result.simulated for name, result in results.items()}
    assert 1.8 < at["looping alone, at most"] < 2.4
    assert (
        at["looping alone, 405B"] < at["looping alone, geometric mean of five Llamas, 16 sockets"]
    )
    assert at["8B, 16 over 8 sockets, looped"] > 1.15 * at["8B, 16 over 8 sockets, not looped"]
    name = "hardware over software orchestration, prefill of 4096, 8B, 8 sockets"
    assert at[name] <= 1.1
    assert at["8B on SN40L-16 at 4K, looped"] > 1.5 * at["8B on SN40L-8 at 4K, looped"]


def test_the_page_has_the_numbers_of_the_code(results: dict[str, Result]) -> None:
    written = {}
    for line in PAGE.read_text().splitlines():
        found = re.match(r"\| \d+\. (.*?) \| (.*?) \| (.*?) \|", line)
        if found:
            written[found[1]] = found[3]
    again = "run python benchmarks/paper.py, and read the difference"
    assert set(written) == set(results), again
    for name, result in results.items():
        assert float(written[name]) == pytest.approx(result.simulated, rel=2e-3), (name, again)


def test_speculation_and_its_inverse() -> None:
    bench = Bench()
    for speedup in (1.5, 2.5):
        rate = bench.acceptance("llama-3.1-70b", "llama-3.2-1b", 5, speedup)
        assert bench.speculation("llama-3.1-70b", "llama-3.2-1b", 5, rate) == pytest.approx(speedup)
    assert bench.acceptance("llama-3.1-70b", "llama-3.2-1b", 5, 99) == pytest.approx(1)


def row(low: float, high: float) -> Row:
    return Row("a | b", "p", low, high, "x", "held out", "who", lambda bench: 1.0)


def test_errors_are_distances_from_what_was_published() -> None:
    assert row(2, 2).error(3) == pytest.approx(0.5)
    assert row(2, 4).error(3) == 0
    assert row(2, 4).error(1) == pytest.approx(-0.5)
    assert row(2, 4).error(6) == pytest.approx(0.5)


def test_sensitivities_are_the_largest_first() -> None:
    found = validate([r for r in ROWS if r.name == "looping alone, at most"])
    (result,) = found
    spans = [each.span for each in result.sensitivities]
    assert spans == sorted(spans, reverse=True)
    assert result.sensitivities[0].input == "start"
    assert result.sensitivities[0].at_low < 0 < result.sensitivities[0].at_high


def test_the_table_as_markdown_and_in_the_page() -> None:
    result = Result(row(2, 2), 3.0, (Sensitivity("gpu", "start", -0.1, 0.2),))
    assert cells(result)[4:] == ("+50%", "held out", "start -10% +20%")
    text = markdown([result])
    assert "\n1. who.\n" in text
    page = f"before\n{paper.BEGIN}\nold\n{paper.END}\nafter\n"
    written = paper.with_table(page, text)
    assert "old" not in written
    assert paper.with_table(written, text) == written
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-t 1", "go with --measure"),
        ("--rounds 2", "go with --measure"),
        ("--measure m --no-sensitivity", "leave --measure out"),
    ],
)
def test_options_that_would_do_nothing(
    options: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *options.split()]) == 2
    assert expected in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--no-sensitivity", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [value["name"] for value in values] == [row.name for row in ROWS]
    assert main(["validate", "--no-sensitivity"]) == 0
    assert "held out" in capsys.readouterr().out
