"""Every family against independent engines, in all dialects, on every rung."""

import json
from typing import Any

import numpy as np
import pytest
from conftest import DATA

from hotloop import Model, load
from hotloop.compiler import SCHEDULES

LONGROPE = "phi3_longrope"
FAMILIES = sorted(
    path.name for path in (DATA / "tiny").iterdir() if path.is_dir() and path.name != LONGROPE
)
Case = dict[str, Any]


def cases(name: str) -> list[Case]:
    return json.loads((DATA / "tiny" / name / "reference.json").read_text())["cases"]


def answers(model: Model, cases: list[Case]) -> tuple[bytes, list[list[int]]]:
    """The logits after each case, and what greedy decoding adds; both must be the reference's."""
    logits = [model.logits(case["input_ids"])[-1] for case in cases]
    greedy = [[t.id for t in model.generate(case["input_ids"], 24)] for case in cases]
    for case, found in zip(cases, logits, strict=True):
        np.testing.assert_allclose(found, case["logits_last"], rtol=0, atol=5e-4)
    assert greedy == [case["greedy_ids"] for case in cases]
    return np.concatenate(logits).tobytes(), greedy


@pytest.mark.parametrize("name", FAMILIES)
def test_rungs_give_the_reference(name: str) -> None:
    """The ends of the ladder, and one rung between them: another for each family in turn."""
    bottom, *middle, top = SCHEDULES
    between = middle[FAMILIES.index(name) % len(middle)]
    with load(DATA / "tiny" / name, 2, bottom, "f32", context=96) as model:
        expected = answers(model, cases(name))
        for schedule in (between, top):
            assert answers(model.with_schedule(schedule), cases(name)) == expected, schedule


def test_longrope_has_other_angles_for_long_contexts() -> None:
    """Up to 40 positions and beyond; transformers looks at what is there, hotloop at the limit."""
    *short, long = cases(LONGROPE)
    for context, some in ((40, short), (96, [long])):
        with load(DATA / "tiny" / LONGROPE, 2, activations="f32", context=context) as model:
            answers(model, some)
