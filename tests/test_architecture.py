"""ARCHITECTURE.md shows real IR: its blocks are what the passes make of the toy program."""

import re
from pathlib import Path

import pytest
from mini import mini_graph

from hotloop.compiler import compile_graph
from hotloop.ir.program import Program
from hotloop.ir.text import print_graph, print_kernel, print_program
from hotloop.machine.machine import Machine

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"


def body(program: Program) -> str:
    """The calls and loops of a program, without declarations and kernels."""
    lines = print_program(program).splitlines()
    last_kernel = max(i for i, line in enumerate(lines) if line == "  }" and i < _body(lines))
    kept = [line for line in lines[last_kernel + 1 : -1] if not line.startswith("  feedback")]
    return "".join(line[2:] + "\n" for line in kept)


def _body(lines: list[str]) -> int:
    return min(i for i, line in enumerate(lines) if re.match(r"  (%.* = call|loop) ", line))


def blocks() -> dict[str, str]:
    programs: dict[str, Program] = {}
    graph = mini_graph()
    machine = Machine("two cores", cores=2)
    compile_graph(graph, machine, "tokens", after_pass=programs.__setitem__)
    layer = next(k for k in programs["pipeline"].kernels if k.name == "layer")
    ops = [line[2:] for line in print_graph(graph).splitlines() if " = " in line]
    return {
        "graph": "".join(line + "\n" for line in ops[:7]),
        "fuse": body(programs["fuse"]),
        "loop": body(programs["loop"]),
        "pipeline": print_kernel(layer),
        "unbound": body(programs["partition"]),
    }


@pytest.mark.parametrize("name", ["graph", "fuse", "loop", "pipeline", "unbound"])
def test_the_page_shows_what_the_passes_make(name: str, request: pytest.FixtureRequest) -> None:
    pattern = re.compile(rf"(<!-- {name} -->\n```\n)(.*?)(```\n)", re.DOTALL)
    page = PAGE.read_text()
    found = pattern.search(page)
    assert found, f"ARCHITECTURE.md has no block {name}"
    if request.config.getoption("--update-golden"):
        new = blocks()[name]
        PAGE.write_text(pattern.sub(lambda m: m.group(1) + new + m.group(3), page))
    else:
        assert found.group(2) == blocks()[name], "pytest --update-golden rewrites the page"


def test_every_folder_is_on_the_map() -> None:
    page = PAGE.read_text()
    source = PAGE.parent / "src" / "hotloop"
    for folder in (path for path in source.iterdir() if (path / "__init__.py").exists()):
        assert f"\n  {folder.name}/" in page, folder.name
