"""docs/loops.md: the table of models and their loops is what the compiler makes of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import DATA
from test_stacks import division

from hotloop.compiler import compile_graph
from hotloop.frontends.config_only import open_bundled
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.ir.types import FORMATS, TensorType
from hotloop.machine.machine import Machine
from hotloop.report.explain import loop_reports

PAGE = Path(__file__).parents[1] / "docs" / "loops.md"
PATTERN = re.compile(r"(<!-- loops -->\n)(.*?)(\nThe table is made by)", re.DOTALL)

#: Models of which the published config is used, and tiny ones that are files.
BUNDLED = (
    "llama-3.1-8b",
    "gemma-2-9b",
    "gemma-3-1b",
    "mixtral-8x7b",
    "qwen3-8b",
    "gpt-oss-120b",
    "deepseek-r1",
)
TINY = (
    "smollm3",
    "cohere2",
    "exaone4",
    "granitemoe",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_neox",
)
#: A context above every window, so that the windows count.
CONTEXT = 8192


def q4_k_m(model: Decoder) -> Decoder:
    """The model with its matrices in the formats that llama.cpp's Q4_K_M chooses for them."""

    def format_of(name: str) -> str:
        layer = re.fullmatch(r"blk\.(\d+)\.(?:attn_v|ffn_down)\.weight", name)
        if layer is None:
            return "q4_k"
        i, layers = int(layer[1]), model.config.layers
        eighth = layers // 8
        more = i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2
        return "q6_k" if more else "q4_k"

    tensors = {
        name: replace(weight, type=TensorType(FORMATS[format_of(name)], weight.type.shape))
        if len(weight.type.shape) > 1
        else weight
        for name, weight in model.tensors.items()
    }
    return replace(model, tensors=tensors)


def models() -> dict[str, Decoder]:
    found = {name: open_bundled(name, "q4_0") for name in BUNDLED}
    found["llama-3.2-3b, Q4_K_M"] = q4_k_m(open_bundled("llama-3.2-3b", "q4_0"))
    return {**found, **{f"*{name}*": decoder(open_model(DATA / "tiny" / name)) for name in TINY}}


def row(name: str, model: Decoder) -> str:
    graph = model.graph(Step(context=CONTEXT))
    program = compile_graph(graph, Machine("two cores", 2), "pipelined").program
    differ = [
        f"`%{arg.name}`: {arg.in_turn}"
        for report in loop_reports(program, graph)
        for arg in report.arguments
        if arg.in_turn
    ]
    return f"| {name} | `{division(program.body)}` | {'<br>'.join(differ)} |\n"


def table() -> str:
    head = "\n| model | calls and loops of a token | what differs, in turn |\n|---|---|---|\n"
    return head + "".join(row(name, model) for name, model in models().items())


def test_the_page_shows_what_the_compiler_makes(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    found = PATTERN.search(page)
    assert found
    if request.config.getoption("--update-golden"):
        new = table()
        PAGE.write_text(PATTERN.sub(lambda m: m[1] + new + m[3], page))
    else:
        assert found[2] == table(), "pytest --update-golden rewrites the page"
