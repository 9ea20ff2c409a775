"""The page of `hotloop report` for this host: every rung measured, and seen from inside."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.api import Model
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.prompts import POSITION, short_prompt
from hotloop.compiler import SCHEDULES
from hotloop.machine.quantity import show
from hotloop.report import timeline as pictures
from hotloop.report.counts import count, traffic
from hotloop.report.page.data import Report, Row, Rung, launch_cost, pass_views, products
from hotloop.report.profile import Profile, profile

#: Readings of the bandwidth, of which the best is the peak.
READINGS = 5

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class _Seen:
    """A rung: the times of its code without stamps, and one launch of its code with them."""

    model: Model
    ms: float
    profile: Profile
    timeline: pictures.Timeline


def measured_report(
    model: Model,
    rounds: int = 3,
    tokens: int = 16,
    progress: Progress = lambda done, total, what: None,
) -> Report:
    """Decode `tokens` tokens of `model`, loaded with the schedule `tokens`, on every rung.

    Raises `UsageError` where the context is too short for them.
    """
    reads = traffic(model.program)
    cut = pictures.middle_layers(model.program)
    seen = {}
    for done, name in enumerate(SCHEDULES):
        progress(done, len(SCHEDULES), f"measure {name}")
        rung = model if name == model.schedule else model.with_schedule(name)
        seen[name] = _look(rung, rounds, tokens, cut)
    progress(len(SCHEDULES), len(SCHEDULES), "measure")
    launches = {name: count(rung.model.program).launches(tokens) for name, rung in seen.items()}
    launch_us = launch_cost({name: (rung.ms, launches[name]) for name, rung in seen.items()})
    gbps = _read_gbps(reads.weight_bytes, model.threads)
    return Report(
        model=model.path.name,
        machine=fingerprint().cpu,
        source="measured",
        facts=(
            ("threads", f"{model.threads:,}"),
            ("activations", model.activations),
            ("position", f"{POSITION:,}"),
            ("weights a token reads", show(reads.weight_bytes, "size")),
            ("KV cache", f"{show(reads.kv_per_position, 'size')} per position"),
        ),
        notes=(
            f"Measured here: medians of {rounds} runs of {tokens} tokens for each rung; threads "
            "are parked between launches.",
            "Timelines are of the token that took the median time in a run whose code notes the "
            "time, which slows it by a little. The weights of a stage count as read while a thread "
            "works on its tiles; what was asked for before comes earlier than it is shown. Where "
            "the trace is at zero, no thread works on weights: they wait for each other, or for a "
            "launch.",
            "The cost of a launch is the ladder's own: what ops takes longer than looped, for "
            "each launch that it makes more. Peak bandwidth is what this host's threads read of "
            "a buffer as large as the weights.",
        ),
        layers=cut.layers,
        gbps=gbps,
        lane_gbps=gbps,
        gflops=None,
        operations=products(model.program),
        rungs=tuple(
            Rung(
                name=name,
                ms=rung.ms,
                calls=count(rung.model.program).calls,
                launches=launches[name],
                syncs=count(rung.model.program).syncs,
                nbytes=float(reads.total(POSITION + tokens // 2)),
                launch_us=launch_us,
                timeline=rung.timeline,
                rows=_rows(rung.profile),
            )
            for name, rung in seen.items()
        ),
        passes=pass_views(model.graph, model.stages, model.remarks),
    )


def _look(model: Model, rounds: int, tokens: int, cut: pictures.Cut) -> _Seen:
    ids = short_prompt(model, tokens)
    model.time_decode(ids, tokens)  # the first warms up
    times = [1e3 * model.time_decode(ids, tokens) / tokens for _ in range(rounds)]
    stamped = model.profiled(tokens)
    stamped.time_decode(ids, tokens)
    stamped.time_decode(ids, tokens)
    events = stamped.events()
    return _Seen(
        model,
        statistics.median(times),
        profile(stamped.program, events),
        pictures.measured(stamped.program, events, cut),
    )


def _read_gbps(nbytes: int, threads: int) -> float:
    team = Team(threads)
    try:
        probe = ReadProbe(nbytes, team)
        return max(probe.gbps() for _ in range(READINGS))
    finally:
        team.close()


def _rows(found: Profile) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"@{stage.kernel} %{stage.stage}",
            stage.passes,
            stage.total,
            stage.wait,
            float(stage.nbytes),
        )
        for stage in found.stages
    )
