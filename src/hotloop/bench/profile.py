"""A rung of the ladder from inside, next to the same rung without time stamps."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

from hotloop.api import Model
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.profile import Events
from hotloop.backends.cpu.team import Team
from hotloop.bench.fingerprint import Fingerprint, fingerprint
from hotloop.bench.prompts import POSITION, short_prompt
from hotloop.bench.result import Samples
from hotloop.report.counts import traffic
from hotloop.report.profile import Profile, profile
from hotloop.report.trace import chrome_trace

#: Tokens in a trace: one is some hundred slices for each thread.
TRACE_TOKENS = 4

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class ProfileResult:
    """All of `hotloop bench --profile`. The events are those of the median round."""

    model: str
    threads: int
    activations: str
    schedule: str
    position: int
    rounds: int
    machine: Fingerprint
    read_gbps: Samples
    plain_ms: Samples
    """Milliseconds per token of the code that runs without `--profile`."""
    profiled_ms: Samples
    profile: Profile
    trace: dict[str, object]

    @property
    def overhead(self) -> float:
        """What the stamps add to a token: the median of the rounds' ratios, less 1."""
        pairs = zip(self.profiled_ms.values, self.plain_ms.values, strict=True)
        return statistics.median(profiled / plain for profiled, plain in pairs) - 1

    def to_json(self) -> dict[str, object]:
        return {
            "model": self.model,
            "threads": self.threads,
            "activations": self.activations,
            "schedule": self.schedule,
            "position": self.position,
            "rounds": self.rounds,
            "machine": asdict(self.machine),
            "read_gbps": self.read_gbps.median,
            "ms": self.plain_ms.median,
            "ms_profiled": self.profiled_ms.median,
            "overhead": self.overhead,
            "profile": self.profile.to_json(),
        }


def measure(
    model: Model,
    rounds: int = 5,
    tokens: int = 64,
    progress: Progress = lambda done, total, what: None,
) -> ProfileResult:
    """Decode `tokens` tokens of `model`, `rounds` times with and without time stamps.

    Raises `UsageError` where the context is too short for them.
    """
    ids = short_prompt(model, tokens)
    profiled = model.profiled(tokens)
    team = Team(model.threads)
    probe = ReadProbe(traffic(model.program).weight_bytes, team)
    read: list[float] = []
    times: dict[Model, list[float]] = {model: [], profiled: []}
    events: list[Events] = []
    try:
        for turn in range(rounds + 1):  # the first warms up
            progress(turn, rounds + 1, "profile")
            read.append(probe.gbps())
            # Whoever runs first after the probe finds the caches full of it: take turns.
            for each in (model, profiled) if turn % 2 else (profiled, model):
                each.time_decode(ids, 1)
                times[each].append(1e3 * each.time_decode(ids, tokens) / tokens)
            events.append(profiled.events())
    finally:
        team.close()
    progress(rounds + 1, rounds + 1, "profile")
    ms = times[profiled][1:]
    median = events[1 + ms.index(statistics.median_low(ms))]
    found = profile(model.program, median)
    middle = max(0, (found.tokens - TRACE_TOKENS) // 2)
    return ProfileResult(
        model=model.path.name,
        threads=model.threads,
        activations=model.activations,
        schedule=model.schedule,
        position=POSITION,
        rounds=rounds,
        machine=fingerprint(),
        read_gbps=Samples(tuple(read[1:])),
        plain_ms=Samples(tuple(times[model][1:])),
        profiled_ms=Samples(tuple(ms)),
        profile=found,
        trace=chrome_trace(model.program, median, middle, TRACE_TOKENS),
    )
