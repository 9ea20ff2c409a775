"""explain and diff: reports on tiny models, and on models with a fault put in."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import Model, load
from hotloop.cli.diff import TOLERANCE
from hotloop.compiler import SCHEDULES
from hotloop.ir import interp
from hotloop.ir.ops import OPS
from hotloop.report.counts import Traffic
from hotloop.report.diff import compare
from hotloop.report.explain import Explanation, explain
from hotloop.report.explain_text import size

TINY = Path(__file__).parent / "data" / "tiny"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(TINY / "llama", threads=2, context=64) as made:
        yield made


@pytest.fixture(scope="module")
def explanation(model: Model) -> Explanation:
    return explain(model)


def test_the_model_explains_itself(model: Model, explanation: Explanation) -> None:
    assert model.explain() == explanation
    assert explanation.model == "llama"
    assert explanation.ops == len(model.graph.ops)
    assert explanation.remarks == model.remarks


def test_all_rungs_are_counted(explanation: Explanation) -> None:
    assert tuple(explanation.rungs) == SCHEDULES
    assert explanation.rungs["ops"].launches_per_run == explanation.ops


def test_every_argument_of_every_loop_is_listed_with_its_class(
    model: Model, explanation: Explanation
) -> None:
    tokens, layers = explanation.loops
    assert (tokens.trip, layers.trip) == (None, 3)
    assert tokens.items == ("@embed", "loop %i", "@epilogue", "@sample")
    assert layers.items == ("@layer",)
    classes = {argument.name: argument.kind for argument in layers.arguments}
    assert classes["x"] == "carried"
    assert classes["attn_q.weight"] == "stacked"
    assert classes["keys"] == "state"
    assert classes["pos"] == "invariant"
    kinds = [argument.kind for argument in tokens.arguments]
    order = ("carried", "stacked", "state", "invariant")
    assert kinds == sorted(kinds, key=order.index)
    assert "blk.{0..2}.keys" in {argument.name for argument in tokens.arguments}


def test_strides_are_those_of_the_packed_weights(model: Model, explanation: Explanation) -> None:
    layers = explanation.loops[1]
    stacked = [argument for argument in layers.arguments if argument.kind == "stacked"]
    offsets = model._weights.region.offsets
    for argument in stacked:
        first, second = (offsets[f"blk.{i}.{argument.name}"] for i in (0, 1))
        assert argument.stride == second - first
        assert argument.buffers == 3


def test_kernels_show_what_waits_for_what(explanation: Explanation) -> None:
    kernels = {kernel.name: kernel for kernel in explanation.kernels}
    assert kernels["layer"].calls == 3
    stages = kernels["layer"].stages
    assert stages[0].waits_for == "entry"
    assert stages[1].waits_for == "s0"
    assert all(stage.prefetch for stage in stages)
    assert any("linear ffn_gate" in part.ops for stage in stages for part in stage.parts)
    assert sum(len(stage.parts) for stage in stages) > len(stages)


def test_a_barrier_is_a_wait_for_everyone(model: Model) -> None:
    looped = explain(model.with_schedule("looped"))
    layer = next(kernel for kernel in looped.kernels if kernel.name == "layer")
    assert {stage.waits_for for stage in layer.stages[1:]} == {"everyone"}
    assert looped.code.nbytes > 0


def test_without_loops_there_are_none_to_explain(model: Model) -> None:
    assert explain(model.with_schedule("ops")).loops == ()


def test_the_json_form_has_everything(explanation: Explanation) -> None:
    values: dict[str, Any] = json.loads(json.dumps(explanation.to_json()))
    assert values["rungs"]["tokens"] == {
        "kernels": 4,
        "calls": 4,
        "launches": 1,
        "launches_per": "generation",
        "syncs": explanation.rungs["tokens"].syncs,
    }
    assert values["bytes_per_token"]["weights_total"] == explanation.traffic.weight_bytes
    assert values["loops"][1]["arguments"][0]["kind"] == "carried"
    assert values["kernels"][0]["stages"][0]["parts"][0]["tiles"] >= 1
    assert {"pass_name", "kind", "where", "text"} == set(values["remarks"][0])
    assert values["code"].keys() == {"nbytes", "seconds", "cached"}


def test_the_text_fits_in_100_columns(explanation: Explanation) -> None:
    text = str(explanation)
    assert max(len(line) for line in text.splitlines()) <= 100
    for expected in ("1 per generation", "Loop %i, 3 times: @layer", "@layer ×3", "stacked"):
        assert expected in text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (96_592_740, "96.6 MB"), (2e9, "2.0 GB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


# diff --------------------------------------------------------------------------------------------


class Faulty:
    """A model whose compiled values can be tampered with."""

    def __init__(self, model: Model, name: str, change: Any, position: int) -> None:
        self.model = model
        self.graph = model.graph
        self.decoder = model.decoder
        self.activations = model.activations
        self.context = model.context
        self.fault = name, change, position

    def trace(self, ids: Sequence[int]) -> Iterator[tuple[str, Any]]:
        name, change, position = self.fault
        for found, value in self.model.trace(ids):
            yield found, change(value) if (found, len(ids) - 1) == (name, position) else value


@pytest.fixture(scope="module", params=[("q8", "f16"), ("f32", "f32"), ("f32", "q8")], ids="-".join)
def stepwise(request: pytest.FixtureRequest) -> Iterator[Model]:
    activations, kv_cache = request.param
    with load(TINY / "llama", 2, "ops", activations, context=32, kv_cache=kv_cache) as made:
        yield made


def test_a_sound_model_is_within_tolerance_everywhere(stepwise: Model) -> None:
    found = compare(stepwise, [5, 9, 2])
    assert max(difference.error for difference in found) < TOLERANCE
    assert [d.position for d in found] == sorted(d.position for d in found)
    assert {"logits", "next", "x", "blk.1.attn"} <= {difference.value for difference in found}


def test_an_op_that_computes_something_else_shows_and_nothing_else_does(
    stepwise: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(OPS["swiglu"], meaning=lambda gate, up: gate * up)
    monkeypatch.setattr(interp, "OPS", {**OPS, "swiglu": other})
    wrong = [d for d in compare(stepwise, [5, 9]) if d.error > TOLERANCE]
    assert [(d.position, d.value) for d in wrong] == [
        (position, f"blk.{layer}.swiglu") for position in (0, 1) for layer in (0, 1, 2)
    ]


def test_the_first_difference_is_the_value_that_is_wrong(stepwise: Model) -> None:
    def off_by_a_little(value: Any) -> Any:
        changed = value.copy()
        changed[0, 3] += 0.01 * np.abs(value).max()
        return changed

    found = compare(Faulty(stepwise, "blk.1.mid", off_by_a_little, 1), [5, 9, 2])
    first = next(difference for difference in found if difference.error > TOLERANCE)
    assert (first.value, first.position, first.op.name) == ("blk.1.mid", 1, "add")
    assert first.at == (0, 3)
    assert first.error == pytest.approx(0.01, rel=0.1)


def test_nan_is_an_infinite_error(stepwise: Model) -> None:
    found = compare(Faulty(stepwise, "blk.2.q", lambda v: v * np.float32(np.nan), 0), [1])
    worst = max(found, key=lambda difference: difference.error)
    assert (worst.value, worst.error) == ("blk.2.q", float("inf"))


def test_another_token_is_an_infinite_error(stepwise: Model) -> None:
    found = compare(Faulty(stepwise, "next", lambda v: v + 1, 0), [1])
    assert [d.value for d in found if d.error == float("inf")] == ["next"]


def test_what_weights_take_in_memory_is_said(tmp_path: Path) -> None:
    with load(TINY / "llama", threads=2, context=64, quantize="q4_1") as quantised:
        explanation = explain(quantised)
    assert explanation.bits["q4_1"] >= 5.0  # and a little for padding
    assert explanation.to_json()["bytes_per_token"]["bits_per_weight"] == explanation.bits
    assert f"{explanation.bits['q4_1']:.2f}" in str(explanation)
    made = replace(explanation, traffic=Traffic({"iq2_u": 1000}, {}), bits={"iq2_u": 4.5625})
    (row,) = [line for line in str(made).splitlines() if "iq2_u" in line]
    assert row.split("4.56")[1].strip() == "IQ2_XXS, IQ2_XS or IQ2_S"
