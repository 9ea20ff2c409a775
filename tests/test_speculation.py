"""Speculation: guesses that a launch checks change how long tokens take, never which they are."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import DATA
from jit import aligned, buffer_of, tile_function
from toys import values

from hotloop import Model, load
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.decoder import Step
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.ir.graph import Graph
from hotloop.ir.interp import run_program
from hotloop.ir.ops import OPS
from hotloop.ir.ops.speculation import LONGEST, NONE
from hotloop.ir.parse import parse
from hotloop.ir.program import Program
from hotloop.ir.text import text
from hotloop.ir.types import CONTROL, tensor
from hotloop.ir.verify import problems
from hotloop.kernels.tile import OpSpec, buffer_bytes
from hotloop.machine.host import host
from hotloop.passes.fuse import fuse
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.session import Speculation
from hotloop.util.errors import UsageError

CAPACITY = 40
ONE, RING, CONTROL_TYPE = tensor("i32", 1), tensor("i32", 1, CAPACITY), tensor("control", 1)

#: Says the same again and again, so that there is much to guess.
PROMPT = [1, 5, 9, 2, 77, 31, 5, 9, 2, 77, 8, 5, 9]
GREEDY = Sampling()
SAMPLED = Sampling(
    temperature=0.7,
    seed=11,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    repeat_penalty=1.05,
    presence_penalty=0.1,
    frequency_penalty=0.05,
)
#: Nearly greedy: it draws, and repeats itself enough for guesses to be right.
COLD = replace(SAMPLED, temperature=0.05, repeat_penalty=1.0, frequency_penalty=0.0)


def generate(model: Model, ids: list[int], n: int, sampling: Sampling) -> list[int]:
    model._session.start(ids, n, sampling)
    model._session.run()
    session = model._session
    return session._ring[len(ids) : session._control[0]["published"]].tolist()


@pytest.fixture
def plain() -> Iterator[Model]:
    with load(DATA / "tiny" / "llama", 2, context=128) as model:
        yield model


# The same tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_rung_gives_the_tokens_of_single_steps(threads: int) -> None:
    with load(DATA / "tiny" / "llama", threads, "ops", context=96) as single:
        expected = [generate(single, PROMPT, 40, how) for how in (GREEDY, SAMPLED, COLD)]
        for schedule in SCHEDULES:
            model = single.with_schedule(schedule).with_speculate(3)
            found = [generate(model, PROMPT, 40, how) for how in (GREEDY, SAMPLED, COLD)]
            assert found == expected, schedule


@pytest.mark.parametrize("family", ["gemma2", "deepseek_v2", "gpt_oss"])
def test_windows_sinks_and_experts(family: str) -> None:
    with load(DATA / "tiny" / family, 2, context=64) as single:
        for how in (GREEDY, SAMPLED):
            tokens = generate(single, PROMPT, 40, how)
            assert generate(single.with_speculate(4), PROMPT, 40, how) == tokens


def test_a_cache_in_8_bit() -> None:
    with load(DATA / "tiny" / "llama", 2, context=64, kv_cache="q8") as single:
        model = single.with_speculate(3)
        for how in (GREEDY, SAMPLED, COLD):
            assert generate(model, PROMPT, 40, how) == generate(single, PROMPT, 40, how)


@pytest.mark.parametrize("speculate", [1, 2, 7, 15])
def test_any_number_of_guesses(plain: Model, speculate: int) -> None:
    model = plain.with_speculate(speculate)
    for how in (GREEDY, SAMPLED, COLD):
        assert generate(model, PROMPT, 100, how) == generate(plain, PROMPT, 100, how)


def test_guesses_are_right_where_the_output_repeats_itself(plain: Model) -> None:
    model = plain.with_speculate(3)
    tokens = generate(model, PROMPT, 100, GREEDY)
    seen = model.speculation
    assert seen.steps + seen.accepted == len(tokens) == 100
    assert 0 < seen.accepted <= seen.drafted <= 3 * seen.steps
    assert seen.tokens_per_step == pytest.approx(100 / seen.steps)


def test_a_model_that_does_not_speculate_counts_nothing(plain: Model) -> None:
    generate(plain, PROMPT, 8, GREEDY)
    assert plain.speculation == Speculation(0, 0, 0)
    assert plain.speculation.tokens_per_step == 0


def test_logits_and_scores_are_those_of_single_steps(plain: Model) -> None:
    model = plain.with_speculate(5)
    generate(model, PROMPT, 20, GREEDY)
    assert model.logits(PROMPT).tobytes() == plain.logits(PROMPT).tobytes()
    assert np.array_equal(list(model.each_logits(PROMPT)), list(plain.each_logits(PROMPT)))


# Where it ends --------------------------------------------------------------------------------


def test_every_length_ends_where_it_should(plain: Model) -> None:
    """Among them those that end within a run of right guesses, and that fill the context."""
    model = plain.with_speculate(7)
    whole = generate(plain, PROMPT, 128, GREEDY)
    assert len(whole) == 128 - len(PROMPT) + 1
    for n in (*range(1, 40), len(whole) - 1, len(whole), len(whole) + 1):
        assert generate(model, PROMPT, n, GREEDY) == whole[:n]
        assert model.finish_reason == "length"


def test_it_stops_at_every_token_that_it_may_stop_at(plain: Model) -> None:
    model = plain.with_speculate(7)
    whole = generate(plain, PROMPT, 60, COLD)
    for token in dict.fromkeys(whole):
        stopping = replace(COLD, stop_ids=(token,))
        assert generate(model, PROMPT, 60, stopping) == whole[: whole.index(token) + 1]
        assert model.finish_reason == "stop"


def test_a_prompt_of_one_token(plain: Model) -> None:
    model = plain.with_speculate(3)
    assert generate(model, [7], 50, GREEDY) == generate(plain, [7], 50, GREEDY)


@pytest.mark.parametrize("context", [1, 2, 3, 5])
def test_a_context_shorter_than_a_step(context: int) -> None:
    with load(DATA / "tiny" / "llama", 2, context=context, speculate=15) as model:
        single = model.with_speculate(0)
        assert generate(model, [5], 99, GREEDY) == generate(single, [5], 99, GREEDY)
        assert model.speculate <= context - 1


def test_the_cache_after_a_run_is_as_good_as_a_new_one(plain: Model) -> None:
    """Keys and values of wrong guesses lie behind what counts as cached."""
    model = plain.with_speculate(7)
    for n in (3, 17, 30):
        tokens = generate(model, PROMPT, n, SAMPLED)
        again = [*PROMPT, *tokens, 40, 41, 5, 9]
        assert model._session._cached == [*PROMPT, *tokens[:-1]]
        found = generate(model, again, 30, GREEDY)
        model._session.forget()
        assert found == generate(model, again, 30, GREEDY) == generate(plain, again, 30, GREEDY)


def test_guesses_of_one_run_are_none_of_the_next(plain: Model) -> None:
    """Guesses left in the step's tokens, and behind the published ones in the ring."""
    model = plain.with_speculate(7)
    for n in (5, 6, 7, 8, 33):
        generate(model, PROMPT, n, GREEDY)
        assert generate(model, PROMPT[:5], 20, SAMPLED) == generate(plain, PROMPT[:5], 20, SAMPLED)


def test_closing_the_stream_cancels_within_a_run(plain: Model) -> None:
    model = plain.with_speculate(7)
    whole = generate(plain, PROMPT, 110, GREEDY)
    tokens = model.generate(PROMPT, 110, stop_ids=())
    first = [next(tokens).id for _ in range(3)]
    tokens.close()
    cached = model._session._cached
    assert first == whole[:3]
    assert cached[len(PROMPT) :] == whole[: len(cached) - len(PROMPT)]
    assert model.finish_reason in ("cancelled", "length")
    assert generate(model, PROMPT, 110, GREEDY) == whole


def test_a_stream_shows_published_tokens_only(plain: Model) -> None:
    model = plain.with_speculate(7)
    assert [token.id for token in model.generate(PROMPT, 90, stop_ids=())] == generate(
        plain, PROMPT, 90, GREEDY
    )


def test_explain_says_that_it_guesses(plain: Model) -> None:
    told = plain.with_speculate(3).explain()
    assert told.speculate == 3
    assert "up to 3 tokens guessed a step" in " ".join(str(told).split())
    assert "guessed" not in str(plain.explain())


@pytest.mark.parametrize("number", [-1, 16])
def test_numbers_of_guesses_that_cannot_be(plain: Model, number: int) -> None:
    with pytest.raises(UsageError, match=f"speculate is {number}; it must be from 0"):
        plain.with_speculate(number)


# The ops --------------------------------------------------------------------------------------


def control_block(**fields: object) -> np.ndarray:
    control = np.zeros(1, CONTROL)
    control["last_pos"] = CAPACITY - 1
    control["stop_ids"] = 7
    for name, value in fields.items():
        control[name] = value
    return control


def both(spec: OpSpec, operands: list[np.ndarray]) -> np.ndarray:
    """The result by meaning; that of the kernel must be the same, and what both write."""
    assert spec.result is not None
    buffers = [buffer_of(operand) for operand in operands]
    result = aligned(buffer_bytes(spec.result), fill=0)
    tile_function(spec)(buffers, result, 0, 1, 1)
    expected = OPS[spec.name].meaning(*operands, **dict(spec.attrs))
    found = result.view(np.int32)[: spec.result.elements]
    np.testing.assert_array_equal(found, expected)
    for buffer, operand in zip(buffers, operands, strict=True):
        np.testing.assert_array_equal(buffer.view(operand.dtype)[: operand.size], operand.ravel())
    return np.asarray(expected)


def drafted(history: list[int], tokens: int, **fields: object) -> list[int]:
    ring = np.full((1, CAPACITY), 99, np.int32)
    ring[0, : len(history)] = history
    spec = OpSpec("draft", (ONE, RING, CONTROL_TYPE), tensor("i32", tokens), (("tokens", tokens),))
    at = np.array([len(history) - 1], np.int32)
    found = both(spec, [at, ring, control_block(**fields)])
    guesses = [token for token in found[1:] if token != NONE]
    assert ring[0, len(history) : len(history) + len(guesses)].tolist() == guesses
    assert (ring[0, len(history) + len(guesses) :] == 99).all()
    return found.tolist()


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([4], [4, NONE, NONE, NONE]),
        ([4, 4], [4, NONE, NONE, NONE]),
        ([1, 2, 3, 9, 2], [2, NONE, NONE, NONE]),  # one token alone is no reason
        ([1, 2, 3, 9, 1, 2], [2, 3, 9, 1]),
        ([1, 2, 3, 9, 1, 2, 4, 5, 1, 2], [2, 4, 5, 1]),  # the latest of two
        ([8, 1, 2, 3, 9, 1, 2, 4, 5, 8, 1, 2], [2, 3, 9, 1]),  # but a longer one first
        ([6, 5, 6, 5], [5, 6, 5, 6]),  # a run that goes on into the guesses
        ([3, 3, 3], [3, 3, 3, 3]),
    ],
)
def test_guesses_follow_what_went_like_this(history: list[int], expected: list[int]) -> None:
    assert drafted(history, 4) == expected


@pytest.mark.parametrize(("run", "guesses"), [(2, 3), (3, 3), (4, 7), (7, 7), (8, 15)])
def test_the_longer_the_run_the_more_guesses(run: int, guesses: int) -> None:
    same = list(range(10, 10 + run))
    found = drafted([*same, 1, *same], 17)
    most = min(guesses, CAPACITY - 2 - 2 * run)
    assert sum(token != NONE for token in found[1:]) == most


@pytest.mark.parametrize("last", [0, 5, 6, 7, 8])
def test_no_guess_beyond_the_last_position(last: int) -> None:
    found = drafted([1, 2, 3, 9, 1, 2], 4, last_pos=last)
    assert found == [2, *[3, 9, 1][: max(last - 6, 0)], *[NONE] * min(3, 9 - last)][:4]


def test_guesses_of_random_histories_are_those_of_the_meaning() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        history = rng.integers(0, rng.integers(1, 5), rng.integers(1, CAPACITY - 1)).tolist()
        drafted(history, int(rng.integers(1, 9)), last_pos=int(rng.integers(0, CAPACITY)))


def test_longer_runs_than_are_compared_count_as_equal() -> None:
    run = list(range(10, 10 + LONGEST))
    assert drafted([5, *run, 1, *run, 2, 5][: CAPACITY - 5], 2)[1] in (1, NONE)
    assert drafted([*run, 1, *run], 2) == [run[-1], 1]


def accepted(
    sampled: list[int], token: list[int], pos: int = 3, **fields: object
) -> tuple[int, list[int], np.ndarray]:
    """(done, tokens published, control)."""
    ring = np.full((1, CAPACITY), 99, np.int32)
    control = control_block(published=pos + 1, **fields)
    several = tensor("i32", len(token))
    spec = OpSpec("accept", (several, several, RING, ONE, CONTROL_TYPE), ONE)
    operands = [np.array(sampled, np.int32), np.array(token, np.int32), ring]
    done = both(spec, [*operands, np.array([pos], np.int32), control])
    end = int(control["published"][0])
    assert (ring[0, end:] == 99).all()
    reached = both(OpSpec("reached", (CONTROL_TYPE,), ONE), [control])
    assert reached.tolist() == [end - 1]
    return int(done[0]), ring[0, pos + 1 : end].tolist(), control


@pytest.mark.parametrize(
    ("sampled", "token", "expected"),
    [
        ([5], [4], [5]),
        ([5, 6, 8], [4, NONE, NONE], [5]),
        ([5, 6, 8], [4, 5, NONE], [5, 6]),
        ([5, 6, 8], [4, 5, 6], [5, 6, 8]),
        ([5, 6, 8], [4, 6, 6], [5]),  # a right guess after a wrong one is none
        ([5, 6, 8], [4, 5, 5], [5, 6]),
    ],
)
def test_what_follows_right_guesses_is_published(
    sampled: list[int], token: list[int], expected: list[int]
) -> None:
    done, published, control = accepted(sampled, token)
    assert (done, published) == (0, expected)
    assert control["steps"] == 1
    assert control["drafted"] == sum(guess != NONE for guess in token[1:])


@pytest.mark.parametrize(
    ("fields", "published", "finish"),
    [
        ({"stop_count": 1, "stop_ids": [6] * 32}, [5, 6], 2),
        ({"stop_count": 1, "stop_ids": [5] * 32}, [5], 2),
        ({"last_pos": 4}, [5], 1),
        ({"last_pos": 5}, [5, 6], 1),
        ({"cancel": 1}, [5], 3),
    ],
)
def test_a_run_of_right_guesses_ends_with_the_generation(
    fields: dict[str, object], published: list[int], finish: int
) -> None:
    done, found, control = accepted([5, 6, 8, 9], [4, 5, 6, 8], **fields)
    assert (done, found, control["finish"][0]) == (1, published, finish)


@pytest.mark.parametrize(
    ("token", "count"), [([4], 1), ([4, NONE], 1), ([4, 5, NONE], 2), ([4, 5, 6], 3)]
)
def test_a_step_has_the_tokens_up_to_the_first_gap(token: list[int], count: int) -> None:
    spec = OpSpec("filled", (tensor("i32", len(token)),), ONE)
    assert both(spec, [np.array(token, np.int32)]).tolist() == [count]


# The program ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = decoder(open_model(DATA / "tiny" / "llama"))
    return made.graph(Step(tokens=4, context=64, activations="f32", speculates=True))


def test_the_loop_over_tokens_is_found_and_says_how_many_there_are(graph: Graph) -> None:
    program = compile_graph(graph, host(2)).program
    (loop,) = program.body
    assert loop.trip is None
    assert loop.until
    assert text(program).endswith("  until %done\n  count %count\n}\n")
    assert parse(text(program)) == program
    assert parse(text(graph)) == graph


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_interpreter_guesses_and_checks_as_machine_code_does(
    graph: Graph, schedule: str
) -> None:
    with load(DATA / "tiny" / "llama", 2, activations="f32", context=64, speculate=3) as model:
        expected = generate(model, PROMPT, 24, GREEDY)
        weights = {
            value.name: _floats(model, value.name).reshape(value.type.shape)
            for value in graph.weights
        }
        steps = model.speculation.steps
    program = compile_graph(graph, host(2), schedule).program
    arrays = {**values(program), **weights}
    arrays["pages"][:] = 0
    for at, token in enumerate(PROMPT):
        arrays["token"][:] = NONE
        arrays["token"][0] = arrays["ring"][0, at] = token
        arrays["pos"][:] = at
        arrays["control"]["last_pos"] = at + 1 if at + 1 < len(PROMPT) else at + 24
        arrays["control"]["steps"] = 0
        _run_until_done(program, arrays)
    end = len(PROMPT) + 24
    assert arrays["ring"][0, len(PROMPT) : end].tolist() == expected
    assert arrays["control"]["published"] == end
    assert arrays["control"]["steps"] == steps


def _run_until_done(program: Program, arrays: dict[str, np.ndarray]) -> None:
    fed = dict(program.feedback)
    seen = replace(program, outputs=(*program.outputs, *fed))
    inputs = dict(arrays)
    while True:
        outputs = run_program(seen, inputs)
        if outputs["done"].any():
            return
        inputs |= {target: outputs[source] for source, target in fed.items()}


def _floats(model: Model, name: str) -> np.ndarray:
    from hotloop.ir.formats import dequantise

    weight = model.decoder.weight(name, model._step)
    return np.asarray(dequantise(weight.data, weight.type), np.float32)


def test_a_count_that_is_no_output_is_a_problem(graph: Graph) -> None:
    program, _ = fuse(graph)
    broken = replace(program, outputs=program.outputs[:-1])
    assert "count %count: is not an output" in problems(broken)


def test_a_count_that_changes_too_early_is_a_problem(graph: Graph) -> None:
    """Rows may be left to compute when it changes: other threads would skip them."""
    (*ops, filled), early = graph.ops, []
    early = replace(filled, operands=("token",))
    program, _ = fuse(replace(graph, ops=(early, *ops)))
    assert any(line.startswith("count %count: %s0 of @") for line in problems(program))
