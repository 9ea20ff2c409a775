"""What a stage and a launch cost on this host: measured on a decoder that is made up.

The reference is a small Llama whose weights are all zero. It goes through the compiler, and its
rungs are timed next to each other. They compute the same, so what they differ by is:

    looped less pipelined   the stages that pipelining merges
    ops less looped         launches as short as an op
    fused less looped       launches of a layer, at a short context, and at a long one: more work

No probe of launches that do nothing gives the same. All threads leave a launch together; a worker
goes to sleep at once, and the first thread starts the next launch 0.7 µs later. Whether that finds
the worker on its way into the system's idle loop (a wake of 1 µs) or asleep (25 µs of the thread
that wakes, and 50 until the other runs, on the virtual machine of docs/machines.md) is a race. It
was lost by 55 % of the launches of 80 µs, by 40 % of those of 110, by 21 % of those of 180, and
depends on what the launches leave in the caches of system and program: by launches that only pass
time it is hardly ever lost.
"""

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from hotloop.backends.cpu.executable import Weights
from hotloop.backends.cpu.team import Team
from hotloop.frontends.config_only import open_values
from hotloop.frontends.decoder import Step
from hotloop.predict.cpu import Costs, op_cases, stream_cases
from hotloop.predict.kernels import KernelProbes
from hotloop.predict.rung import Rung

#: Layers of 2.6 MB in 4-bit weights, 63 MB in all: neither as large nor as wide as any that is
#: known, and more than the caches of a few cores.
CONFIG: Mapping[str, object] = {
    "model_type": "llama",
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 24,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
WEIGHTS = "q4_0"
SHORT, LONG = 16, 2048
RUNGS = ("ops", "fused", "looped", "pipelined")
#: Seconds of a measurement, and its tokens at most.
SECONDS, TOKENS = 0.05, 16

_REFERENCE = "a made-up decoder of 24 layers"
SOURCES: Mapping[str, str] = {
    "stage_sync": f"{_REFERENCE}: what merging stages saves, for each",
    "start_short": f"{_REFERENCE}: a launch for each op, less one for all",
    "start_short_work": f"{_REFERENCE}: a token's time over its ops",
    "start": f"{_REFERENCE}: a launch for each layer, less one for all",
    "start_work": f"{_REFERENCE}: a token's time over its layers",
    "start_long": f"{_REFERENCE}: the same at position {LONG:,}",
    "start_long_work": f"{_REFERENCE}: the same at position {LONG:,}",
}
"""How each field of a description is measured."""


@dataclass(frozen=True)
class Boundaries:
    """What stages and launches of a team cost, in seconds: fields of a machine's description.

    Each start goes with the mean work of the launches that it was measured on.
    """

    stage_sync: float
    start_short: float
    start_short_work: float
    start: float
    start_work: float
    start_long: float
    start_long_work: float

    @property
    def launches(self) -> tuple[tuple[float, float], ...]:
        """As `Costs` has them."""
        return (
            (self.start_short_work, self.start_short),
            (self.start_work, self.start),
            (self.start_long_work, self.start_long),
        )


class Reference:
    """The reference decoder on a team: `measure` makes one round, `boundaries` says what it found.

    `close` gives back what its rungs hold; the team goes on.
    """

    def __init__(self, team: Team) -> None:
        self._stack = ExitStack()
        self.close = self._stack.close
        decoder = open_values("reference", CONFIG, WEIGHTS)
        step = Step(context=LONG + 2 * TOKENS)
        weights = Weights(decoder.graph(step))
        weights.fill(lambda name: decoder.weight(name, step).data, team.threads)
        self.rungs = {name: Rung(decoder, step, name, weights, team) for name in RUNGS}
        for rung in self.rungs.values():
            self._stack.callback(rung.close)
        self.tokens = {name: self._enough(name) for name in RUNGS}
        self.shapes = {
            (name, at): self.rungs[name].shape(at + self.tokens[name] // 2)
            for name in RUNGS
            for at in (SHORT, LONG)
        }
        shapes = [self.shapes[name, SHORT] for name in ("looped", "pipelined")]
        self.probes = KernelProbes(op_cases(shapes), stream_cases(shapes), weights.arena, team)
        self.team = team
        self.samples: dict[tuple[str, int], list[float]] = {}

    def _enough(self, name: str) -> int:
        least = min(self.rungs[name].decode(SHORT, 2) for _ in range(3))
        return max(2, min(TOKENS, int(SECONDS / least)))

    def measure(self) -> None:
        """Each rung twice, of which the second time counts: what has slept is slow at first."""
        self.probes.measure()
        for at in (SHORT, LONG):
            for name in RUNGS:
                self.rungs[name].decode(at, self.tokens[name])
                seconds = self.rungs[name].decode(at, self.tokens[name])
                self.samples.setdefault((name, at), []).append(seconds)

    @property
    def boundaries(self) -> Boundaries:
        stage = self._stage()
        short_work, short = self._launch("ops", SHORT)
        work, start = self._launch("fused", SHORT)
        long_work, long = self._launch("fused", LONG)
        return Boundaries(stage, short, short_work, start, work, long, long_work)

    def _less(self, many: str, few: str, at: int) -> float:
        """Seconds by which a step of one rung takes longer than one of another, round by round."""
        pairs = zip(self.samples[many, at], self.samples[few, at], strict=True)
        return statistics.median(one - other for one, other in pairs)

    def _stage(self) -> float:
        """Of what merging stages saves, what it adds to the ops of the others is no part."""
        threads, kernels = self.team.threads, self.probes.kernels
        costs = Costs(self.probes.stream, 0.0, threads=threads, kernels=kernels)
        many, few = (self.shapes[name, SHORT] for name in ("looped", "pipelined"))
        computed = many.seconds(costs) - few.seconds(costs)
        saved = self._less("looped", "pipelined", SHORT) - computed
        return max(0.0, saved / (many.stages - few.stages))

    def _launch(self, rung: str, at: int) -> tuple[float, float]:
        """(mean work of a launch, what it costs besides)."""
        count = len(self.shapes[rung, at].launches)
        work = statistics.median(self.samples["looped", at]) / count
        return work, max(0.0, self._less(rung, "looped", at) / (count - 1))
