"""Scheduler and pages as state machines: whatever happens, no page is lost or written by two."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_executor import FakeExecutor, continuation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hotloop.runtime.executor import Row
from hotloop.runtime.pages import Node, Pages
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.scheduler import INTERLEAVE, Plan, Scheduler
from hotloop.runtime.sequence import Sequence

PAGES, SIZE, ROWS, BLOCK = 7, 4, 3, 6


def sequence(tokens: list[int], more: int = 4) -> Sequence:
    return Sequence(list(tokens), len(tokens) + more, Sampling(), lambda output: None)


def scheduler(pages: int = PAGES, rows: int = ROWS) -> Scheduler:
    return Scheduler(Pages(pages, SIZE), rows, BLOCK)


def run(scheduler: Scheduler, executor: FakeExecutor, plan: Plan) -> list[Sequence]:
    """Do what the plan says, and return the sequences that ended."""
    for source, target in plan.copies:
        executor.copy_page(source, target)
    if plan.chunk is not None:
        chunk = plan.chunk
        assert chunk.sequence.table is not None
        tokens = chunk.sequence.tokens[chunk.start : chunk.stop]
        executor.prefill(tokens, chunk.start, chunk.sequence.table.pages)
        scheduler.read(chunk)
    if not plan.rows:
        return []
    rows = []
    for s in plan.rows:
        assert s.table is not None
        rows.append(Row(list(s.tokens), s.prompt, s.limit, s.table.pages, s.sampling))

    def deliver(new: list[list[int]]) -> bool:
        for s, tokens in zip(plan.rows, new, strict=True):
            scheduler.extend(s, tokens)
        return True

    executor.decode(rows, plan.steps, deliver)
    ended = [s for s in plan.rows if s.finish]
    for s in ended:
        scheduler.remove(s)
    return ended


def drain(scheduler: Scheduler, executor: FakeExecutor) -> list[Sequence]:
    """Run until nothing is left; the sequences in the order of their ends."""
    ended: list[Sequence] = []
    for _ in range(1000):
        if not scheduler.running and not scheduler.waiting:
            return ended
        ended += run(scheduler, executor, scheduler.plan())
    raise AssertionError("the scheduler does not come to an end")


def check_pages(pages: Pages, held: list[Sequence]) -> None:
    """Every page is free, cached or held, and as often as it is held."""
    holders = Counter(page for s in held if s.table for page in s.table.pages)
    assert [holders[page] for page in range(pages.count)] == pages._holders
    assert len(set(pages._free)) == len(pages._free)
    assert not set(pages._free) & (set(pages._idle) | set(holders) | set(pages._nodes))
    assert not set(pages._idle) & set(holders)
    assert set(pages._idle) <= set(pages._nodes)
    assert pages.available + len(holders) == pages.count
    assert tree_pages(pages._root) == sorted(pages._nodes)
    for node in pages._nodes.values():
        assert len(node.tokens) == pages.size or not node.children
    seen: set[int] = set()
    for page, node in pages._idle.items():  # what is evicted first is a leaf
        seen.add(page)
        assert all(child.page in seen for child in node.children.values())
    for s in held:
        if s.table is None:
            continue
        written = s.table.pages[s.computed // pages.size :]  # what it may write
        assert all(holders[page] == 1 for page in written)
        full = {node.page for node in s.table.nodes}
        assert not full & set(written)


def tree_pages(node: Node) -> list[int]:
    found = [page for child in node.children.values() for page in tree_pages(child)]
    return sorted(found if node.page < 0 else [node.page, *found])


class Machine(RuleBasedStateMachine):
    """Requests of few distinct tokens, so that prefixes meet, come, run, are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler()
        self.executor = FakeExecutor(PAGES, SIZE, ROWS, BLOCK, vocab=3)
        self.alive: list[Sequence] = []
        self.started: list[int] = []
        self.order: dict[int, int] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20), more=st.integers(1, 8))
    def add(self, tokens: list[int], more: int) -> None:
        added = sequence(tokens, more)
        self.order[id(added)] = len(self.order)
        self.alive.append(added)
        self.scheduler.add(added)

    @precondition(lambda self: self.alive)
    @rule()
    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan.chunk is not None or plan.rows
        check_pages(self.scheduler.pages, self.alive)
        for ended in run(self.scheduler, self.executor, plan):
            self.alive.remove(ended)
            made = ended.limit - ended.prompt
            wanted = continuation(ended.tokens[: ended.prompt], made, vocab=3)
            assert ended.tokens[ended.prompt :] == wanted

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.alive))
        self.alive.remove(gone)
        self.scheduler.remove(gone)

    @invariant()
    def pages_are_accounted_for(self) -> None:
        check_pages(self.scheduler.pages, self.alive)

    @invariant()
    def order_is_fair(self) -> None:
        arrival = [self.order[id(s)] for s in (*self.scheduler.running, *self.scheduler.waiting)]
        assert arrival == sorted(arrival)
        assert len(self.scheduler.running) <= ROWS

    def teardown(self) -> None:
        drain(self.scheduler, self.executor)
        check_pages(self.scheduler.pages, [])
        assert self.scheduler.pages.available == PAGES


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=120, stateful_step_count=40)


def test_a_prefix_is_computed_once() -> None:
    s, executor = scheduler(pages=12), FakeExecutor(12, SIZE, ROWS, BLOCK)
    prompt = list(range(10))
    s.add(sequence(prompt))
    drain(s, executor)
    executor.calls.clear()
    again = sequence([*prompt, 50, 51])
    s.add(again)
    drain(s, executor)
    # Ten tokens are there: two full pages, and two positions of a page that is copied. What is
    # left to read is one token; the last is decoding's.
    assert again.cached == 10
    assert executor.calls[:2] == ["copy", "prefill 1"]


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    s, executor = scheduler(), FakeExecutor(PAGES, SIZE, ROWS, BLOCK)
    for prompt in ([1], [1, 2, 3, 4], [1, 2, 3, 4, 5]):
        s.add(sequence(prompt))
        drain(s, executor)
        again = sequence(prompt)
        s.add(again)
        drain(s, executor)
        assert again.cached == len(prompt) - 1


def test_requests_at_the_same_time_share_their_prompt() -> None:
    s, executor = scheduler(pages=12), FakeExecutor(12, SIZE, ROWS, BLOCK)
    for _ in range(3):
        s.add(sequence([5] * 13))
    drain(s, executor)
    assert [call for call in executor.calls if "prefill" in call] == ["prefill 6", "prefill 6"]


def test_long_prompts_do_not_stall_streams() -> None:
    s, executor = scheduler(pages=40), FakeExecutor(40, SIZE, ROWS, BLOCK)
    s.add(sequence([1, 2], more=60))
    run(s, executor, s.plan())
    s.add(sequence([3] * 60))
    executor.calls.clear()
    for _ in range(5):
        run(s, executor, s.plan())
    assert executor.calls == ["prefill 6", f"decode 1 x {INTERLEAVE}"] * 5


def test_short_prompts_overtake_long_ones_which_go_on() -> None:
    s, executor = scheduler(pages=40), FakeExecutor(40, SIZE, ROWS, BLOCK)
    long, short = sequence([1] * 60), sequence([2] * 12)
    s.add(long)
    s.add(short)
    read = []
    for _ in range(4):
        plan = s.plan()
        assert plan.chunk is not None
        read.append("long" if plan.chunk.sequence is long else "short")
        run(s, executor, plan)
    assert read == ["long", "short", "long", "short"]
    assert not short.reads


def test_the_youngest_is_put_back_where_memory_is_full() -> None:
    s, executor = scheduler(pages=4), FakeExecutor(4, SIZE, ROWS, BLOCK, vocab=97)
    old, young = sequence([1, 2, 3], more=9), sequence([4, 5, 6], more=9)
    s.add(old)
    s.add(young)
    ended = drain(s, executor)
    assert ended == [old, young]
    assert s.preemptions > 0
    for done in ended:
        assert done.tokens == done.tokens[:3] + continuation(done.tokens[:3], 9, 97)


def test_constrained_sequences_take_single_steps() -> None:
    s, executor = scheduler(), FakeExecutor(PAGES, SIZE, ROWS, BLOCK)
    plain, wants = sequence([1, 2]), sequence([3, 4])
    wants.logprobs = 2
    s.add(plain)
    s.add(wants)
    for _ in range(3):
        plan = s.plan()
        run(s, executor, plan)
    assert plan.steps == 1


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_sequence_that_fills_all_pages(count: int) -> None:
    s, executor = scheduler(pages=count), FakeExecutor(count, SIZE, ROWS, BLOCK)
    whole = sequence([1], more=count * SIZE - 1)
    s.add(whole)
    assert drain(s, executor) == [whole]
    assert s.pages.available == count
