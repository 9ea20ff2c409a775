"""pipeline: stages merged, waits narrowed, nothing lost."""

from collections.abc import Callable
from pathlib import Path

from conftest import DATA
from mini import mini_graph

from hotloop.frontends.decoder import Step
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.models import decoder
from hotloop.ir.graph import Graph
from hotloop.ir.program import ENTRY, Kernel
from hotloop.ir.text import text
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.passes.pipeline import pipeline


def llama(tokens: int = 1, folder: Path = DATA / "tiny" / "llama") -> Graph:
    step = Step(tokens=tokens, context=64, head=tokens == 1)
    return decoder(read_hf_folder(folder)).graph(step)


def layer(graph: Graph) -> Kernel:
    program, _ = pipeline(loop(fuse(graph)[0])[0])
    return next(kernel for kernel in program.kernels if kernel.name == "layer")


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("pipeline", text(pipeline(loop(fuse(mini_graph())[0])[0])[0]))


def test_a_llama_layer_has_five_stages() -> None:
    stages = layer(llama()).stages
    parts = [[[op.name for op in part.ops] for part in stage.parts] for stage in stages]
    assert parts == [
        [["linear", "rope"], ["linear", "rope", "store_keys"], ["linear", "store_values"]],
        [["attend"]],
        [["linear", "add"]],
        [["linear", "linear", "swiglu"]],
        [["linear", "add"]],
    ]
    assert [[op.name for op in stage.each] for stage in stages] == [
        ["rms_norm"],
        [],
        ["combine"],
        ["rms_norm"],
        [],
    ]
    assert [stage.after for stage in stages] == [(ENTRY,), ("s0",), ("s1",), ("s2",), ("s3",)]
    assert not any(stage.barrier for stage in stages)


def test_with_many_tokens_norms_are_shared_work() -> None:
    """Each thread for itself would repeat T rows of work; a stage of its own costs one wait."""
    stages = layer(llama(tokens=16)).stages
    assert all(stage.each == () for stage in stages)
    assert [op.name for op in stages[0].ops] == ["rms_norm"]
    assert "attention" in [op.name for stage in stages for op in stage.ops]


def test_every_op_is_still_there() -> None:
    graph = llama()
    before, _ = loop(fuse(graph)[0])
    after, _ = pipeline(before)
    for old, new in zip(before.kernels, after.kernels, strict=True):
        assert sorted(op.name for op in old.ops) == sorted(op.name for op in new.ops)
        assert (old.params, old.results) == (new.params, new.results)
