"""The ladder, measured: every rung on the same weights and threads, next to the memory's speed.

Machines drift: another tenant, a clock that throttles. So one round measures everything once, the
rounds start at different places of the list, and medians of rounds are compared with each other.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from hotloop.api import Model
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.bench import first_token
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.prompts import POSITION, sample_ids, short_prompt
from hotloop.bench.result import BenchResult, RungResult, Samples
from hotloop.compiler import SCHEDULES
from hotloop.report.counts import count, traffic

#: A buffer that no cache of a CPU holds.
DRAM_BYTES = 512 << 20
#: Readings of the bandwidth in a round, 50 ms each.
READINGS = 3
PROMPT_TOKENS = 256

Progress = Callable[[int, int | None, str], None]


def bench(
    model: Model,
    rungs: Sequence[str] = SCHEDULES,
    rounds: int = 5,
    tokens: int = 64,
    progress: Progress = lambda done, total, what: None,
) -> BenchResult:
    """Measure `model`, loaded with the schedule `tokens`, on all `rungs`.

    Each measurement decodes `tokens` tokens. Raises `UsageError` where the context is too short
    for them.
    """
    ids = short_prompt(model, tokens)
    ladder = {name: _on_rung(model, name) for name in rungs}
    counts = {name: count(rung.program) for name, rung in ladder.items()}
    reads = traffic(model.program)
    prompt = sample_ids(model.config.vocab, min(PROMPT_TOKENS, model.context // 2))
    team = Team(model.threads)
    small, large = ReadProbe(reads.weight_bytes, team), ReadProbe(DRAM_BYTES, team)

    def read(probe: ReadProbe) -> float:
        return statistics.median(probe.gbps() for _ in range(READINGS))

    def decode(rung: Model, wake: str) -> float:
        rung.set_wake(wake)
        seconds = rung.time_decode(ids, tokens)
        if wake != "parked":  # a launch ends the spinning, which would disturb what comes next
            rung.set_wake("parked")
            rung.time_decode(ids, 1)
        return 1e3 * seconds / tokens

    wakes = {"parked": list(rungs), "spinning": [n for n in rungs if not counts[n].endless]}
    work: dict[tuple[str, str], Callable[[], float]] = {
        ("read", "small"): partial(read, small),
        ("read", "dram"): partial(read, large),
        ("prompt", ""): lambda: len(prompt) / model.time_prompt(prompt),
    }
    for wake, names in wakes.items():
        work.update({(name, wake): partial(decode, ladder[name], wake) for name in names})
    try:
        samples = _rounds(work, rounds, progress)
    finally:
        team.close()

    def results(wake: str) -> dict[str, RungResult]:
        return {
            name: RungResult(
                ms=samples[name, wake],
                launches=counts[name].launches(tokens),
                syncs=counts[name].syncs,
                bytes_per_token=reads.weight_bytes,
            )
            for name in wakes[wake]
        }

    progress(0, None, "first token")
    cold, warm = first_token.measure(
        model.path,
        model.threads,
        model.activations,
        model.kv_cache,
        model.decoder.quantised,
        min(rounds, 3),
    )
    return BenchResult(
        model=model.path.name,
        threads=model.threads,
        activations=model.activations,
        tokens=tokens,
        position=POSITION,
        rounds=rounds,
        machine=fingerprint(),
        bytes_per_token=reads.weight_bytes,
        kv_bytes_per_position=reads.kv_per_position,
        read_gbps=samples["read", "small"],
        read_gbps_dram=samples["read", "dram"],
        dram_bytes=DRAM_BYTES,
        rungs=results("parked"),
        spinning=results("spinning"),
        prompt_tokens=len(prompt),
        prompt_tok_s=samples["prompt", ""],
        first_token=cold,
        first_token_cached=warm,
    )


def _on_rung(model: Model, name: str) -> Model:
    return model if name == model.schedule else model.with_schedule(name)


def _rounds(
    work: dict[tuple[str, str], Callable[[], float]], rounds: int, progress: Progress
) -> dict[tuple[str, str], Samples]:
    """Do everything once to warm up, then `rounds` times, each round starting elsewhere."""
    names = list(work)
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    total = (rounds + 1) * len(names)
    for done in range(total):
        turn, at = divmod(done, len(names))
        name = names[(at + turn) % len(names)]
        progress(done, total, "measure")
        value = work[name]()
        if turn > 0:
            samples[name].append(value)
    return {name: Samples(tuple(values)) for name, values in samples.items()}
