"""Names in IR text, and how a run of names that differ in one number is written as one word.

    blk.{0..29}.keys       blk.0.keys, blk.1.keys, … blk.29.keys
    blk.{0..28..2}.keys    every second of them

Rows of names are compressed in blocks: where rows repeat with a period and only numbers advance,
one row per place in the period stands for all of them, as in

    weight %blk.{0..29}.norm : f32[64],      blk.0.norm, blk.0.proj, blk.1.norm, blk.1.proj, …
           %blk.{0..29}.proj : f32[64,64]
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

_CHARACTER = r"(?:[A-Za-z0-9_./]|-(?!>))"

#: What a name may consist of: no braces, so that a range is never part of one.
NAME = re.compile(rf"{_CHARACTER}+")

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)(?:\.\.(\d+))?\}")

#: A name or a run of names, as a pattern for the lexer.
WORD = rf"(?:{_CHARACTER}|\{{[0-9.]*\}})+"

#: Rows that repeat with a longer period than this are printed one by one.
_LONGEST_PERIOD = 64


class Row(NamedTuple):
    """Names that advance together, and what must stay the same for rows to be one family."""

    names: tuple[str, ...]
    rest: Hashable


def expand(word: str) -> tuple[str, ...]:
    """The names that `word` stands for; ValueError where its range makes no sense."""
    if "{" not in word:
        return (word,)
    found = list(_RANGE.finditer(word))
    if len(found) != 1 or word.count("{") != 1:
        raise ValueError("a name may have one range, {first..last} or {first..last..step}")
    first, last, step = (int(number or 1) for number in found[0].groups())
    if step < 1 or last < first or (last - first) % step:
        raise ValueError(f"{found[0].group()} does not count up to its end")
    head, tail = word[: found[0].start()], word[found[0].end() :]
    return tuple(f"{head}{number}{tail}" for number in range(first, last + 1, step))


def compress(names: Sequence[str]) -> list[str]:
    """Words that expand to `names`, in order."""
    rows = [Row((name,), None) for name in names]
    return [row.names[0] for block in blocks(rows, longest_period=1) for row in block]


def blocks(rows: Sequence[Row], longest_period: int = _LONGEST_PERIOD) -> Iterator[list[Row]]:
    """Cut `rows` into blocks: each is one row, or the rows of one period as families."""
    at = 0
    while at < len(rows):
        period, count = _longest_run(rows, at, longest_period)
        last = at + (count - 1) * period
        yield [_family(rows[at + k], rows[last + k], count) for k in range(period)]
        at += period * count


def _longest_run(rows: Sequence[Row], at: int, longest_period: int) -> tuple[int, int]:
    """(period, repeats) of the run from `at` that covers most rows."""
    best = (1, 1)
    for period in range(1, min(longest_period, (len(rows) - at) // 2) + 1):
        count = _repeats(rows, at, period)
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _repeats(rows: Sequence[Row], at: int, period: int) -> int:
    steps = []
    for k in range(at, at + period):
        step = _advance(rows[k], rows[k + period])
        if step is None:
            return 1
        steps.append(step)
    count = 2
    while at + (count + 1) * period <= len(rows):
        start = at + (count - 1) * period
        if any(
            _advance(rows[start + k], rows[start + k + period]) != step
            for k, step in enumerate(steps)
        ):
            break
        count += 1
    by_one = all(by == 1 for step in steps for _, by in step)
    return count if by_one or count > 2 else 1


def _advance(a: Row, b: Row) -> list[tuple[int, int]] | None:
    """For each name, which number of it grows from `a` to `b`, and by how much."""
    if a.rest != b.rest or len(a.names) != len(b.names):
        return None
    steps = [_difference(x, y) for x, y in zip(a.names, b.names, strict=True)]
    known = [step for step in steps if step is not None]
    return known if len(known) == len(steps) else None


@lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str, ...]:
    """What is between numbers, and the numbers, in turn."""
    return tuple(re.split(r"(\d+)", name))


def _difference(a: str, b: str) -> tuple[int, int] | None:
    left, right = _parts(a), _parts(b)
    if len(left) != len(right):
        return None
    differing = [k for k, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    at = differing[0]
    low, high = int(left[at]), int(right[at])
    if high <= low or str(low) != left[at] or str(high) != right[at]:
        return None  # 007 would come back as 7
    return at, high - low


def _family(first: Row, last: Row, count: int) -> Row:
    if count == 1:
        return first
    words = []
    for a, b in zip(first.names, last.names, strict=True):
        found = _difference(a, b)
        assert found is not None
        at, span = found
        parts = list(_parts(a))
        step = span // (count - 1)
        end = f"{int(parts[at]) + span}" + (f"..{step}" if step > 1 else "")
        parts[at] = f"{{{parts[at]}..{end}}}"
        words.append("".join(parts))
    return Row(tuple(words), first.rest)
