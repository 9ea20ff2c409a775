"""Where the time of a token goes, stage by stage: what the time stamps of a launch add up to.

A thread passes through the same stages in the same order for every token, so its events are an
array [tokens, sites], whose columns the program names.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hotloop.backends.cpu.profile import Events
from hotloop.ir.program import Kernel, Loop, Program, Stage
from hotloop.ir.types import TensorType
from hotloop.report.counts import executed, weight_share, weights_of
from hotloop.util.errors import UsageError

#: What a pass through a stage is divided into, by the stamps at the ends of each part.
PHASES = {
    "claim": ("start", "asked"),
    "wait": ("asked", "waited"),
    "each": ("waited", "each"),
    "work": ("each", "end"),
}


@dataclass(frozen=True)
class Site:
    """A place in a token's run: a stage of a kernel, in the n-th execution of that kernel.

    At the end of an iteration of an open-ended loop every thread waits, which is a site of its own
    (kernel "token", stage "end"). `nbytes` are those of the weights that the stage reads, as the
    file stores them.
    """

    kernel: str
    stage: str
    iteration: int
    nbytes: int


def sites(program: Program) -> list[Site]:
    """What every thread passes through for one token, in order.

    Raises `UsageError` for a program that does more than one open-ended loop.
    """
    endless = any(isinstance(item, Loop) and item.trip is None for item in program.body)
    if endless and len(program.body) > 1:
        raise UsageError("only a generation that is one loop can be profiled; try another rung.")
    seen: Counter[Kernel] = Counter()
    found: list[Site] = []
    for call, args in executed(program.body, {}):
        kernel = call.kernel
        weights = weights_of(program, call, args)
        for stage in kernel.stages:
            nbytes = _weight_bytes(kernel, stage, weights)
            found.append(Site(kernel.name, stage.name, seen[kernel], nbytes))
        seen[kernel] += 1
    return [*found, Site("token", "end", 0, 0)] if endless else found


def _weight_bytes(kernel: Kernel, stage: Stage, weights: Mapping[str, TensorType]) -> int:
    """As `traffic` counts them: each op reads what it needs of its weights."""
    types = {**kernel.types, **weights}
    return sum(
        weight_share(op, name, types) for op in stage.ops for name in op.operands if name in weights
    )


@dataclass(frozen=True)
class StageProfile:
    """A stage over one token: µs of all its passes together, means of tokens and threads."""

    kernel: str
    stage: str
    passes: int
    claim: float
    wait: float
    each: float
    work: float
    span: float
    """From the first thread at work to the last one done."""
    tiles: tuple[float, ...]
    """Tiles that each thread computed in one pass, on average."""
    nbytes: int
    """Weights that one token reads here."""

    @property
    def total(self) -> float:
        return self.claim + self.wait + self.each + self.work

    @property
    def gbps(self) -> float | None:
        """All threads together, during `span`; None where no weights are read or no time passes."""
        return self.nbytes / self.span / 1e3 if self.nbytes and self.span else None


@dataclass(frozen=True)
class Profile:
    """A launch, or a run of launches, of `tokens` tokens: µs per token."""

    tokens: int
    threads: int
    token: float
    """From one token to the next."""
    stages: tuple[StageProfile, ...]

    @property
    def outside(self) -> float:
        """Between stages: announcing what is complete, calls, launches."""
        return self.token - sum(stage.total for stage in self.stages)

    def phase(self, name: str) -> float:
        """A phase over all stages."""
        return float(sum(getattr(stage, name) for stage in self.stages))

    def to_json(self) -> dict[str, object]:
        return {
            "tokens": self.tokens,
            "threads": self.threads,
            "token_us": self.token,
            "outside_us": self.outside,
            "phases_us": {name: self.phase(name) for name in PHASES},
            "stages": [
                {**asdict(stage), "gbps": stage.gbps, "share": stage.total / self.token}
                for stage in self.stages
            ],
        }


def by_token(program: Program, events: Events) -> Events:
    """Events [threads, tokens, sites] of events [threads, n], for the tokens all threads saw."""
    return events.reshape(len(events), -1, len(sites(program)))


def profile(program: Program, events: Events) -> Profile:
    """Add up the events [threads, n] of a run of `program` that made at least one token."""
    passes = by_token(program, events)
    threads, tokens, _ = passes.shape
    wall = int(passes["end"].max() - passes["start"].min())
    stages = tuple(_stage(same, passes[..., at]) for same, at in _grouped(sites(program)))
    return Profile(tokens, threads, wall / tokens / 1e3, stages)


def _grouped(places: Sequence[Site]) -> Iterator[tuple[list[Site], list[int]]]:
    """The sites of each stage of each kernel, and their positions, in order of first passing."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, site in enumerate(places):
        groups.setdefault((site.kernel, site.stage), []).append(i)
    for at in groups.values():
        yield [places[i] for i in at], at


def _stage(same: list[Site], passes: Events) -> StageProfile:
    """`passes` are events [threads, tokens, len(same)]."""

    def per_token(begin: str, end: str) -> float:
        return float((passes[end] - passes[begin]).sum(axis=2).mean()) / 1e3

    worked = passes["tiles"] > 0
    began = np.where(worked, passes["each"], passes["end"].max()).min(axis=0)
    ended = np.where(worked, passes["end"], began).max(axis=0)
    span = float((ended - began).sum(axis=1).mean()) / 1e3
    tiles: list[float] = np.mean(passes["tiles"], axis=(1, 2)).tolist()
    times = {name: per_token(*ends) for name, ends in PHASES.items()}
    nbytes = sum(site.nbytes for site in same)
    first = same[0]
    return StageProfile(
        first.kernel,
        first.stage,
        len(same),
        **times,
        span=span,
        tiles=tuple(tiles),
        nbytes=nbytes,
    )
