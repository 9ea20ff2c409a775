"""The kernels of programs by themselves, measured in rounds: what the cost model knows of them."""

import statistics
import time
from collections.abc import Callable, Sequence

from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.kernel_probe import OpCase, OpProbe, StreamCase, StreamProbe
from hotloop.backends.cpu.team import Team
from hotloop.predict.cpu import Kernels

Progress = Callable[[int, int | None, str], None]


class KernelProbes:
    """`ops` on a core and `streams` on the team's threads, those over `memory`.

    That the memory holds the weights of other ops, or none, makes no difference: the speed does not
    depend on what is computed with. A plain read next to each stream says how fast the memory was
    meanwhile.
    """

    def __init__(
        self,
        ops: Sequence[OpCase],
        streams: Sequence[StreamCase],
        memory: Arena,
        team: Team,
        read: ReadProbe | None = None,
    ) -> None:
        self.read = read or ReadProbe(len(memory.data), team, memory)
        self.ops = list(ops)
        self.op_probe = OpProbe(self.ops)
        self.streams = {case: StreamProbe(case, memory, team) for case in streams}
        self.rows: list[list[float]] = []
        self.rates: dict[StreamCase, list[float]] = {case: [] for case in self.streams}
        self.reads: list[float] = []

    def measure(self) -> None:
        """One measurement of each."""
        self.rows.append(self.op_probe.seconds())
        self.reads.append(1e9 * self.read.once())
        for case, probe in self.streams.items():
            self.rates[case].append(probe.rate())
            self.reads.append(1e9 * self.read.once())

    @property
    def stream(self) -> float:
        """Bytes per second of the plain reads."""
        return statistics.median(self.reads)

    @property
    def kernels(self) -> Kernels:
        rows = map(statistics.median, zip(*self.rows, strict=True))
        rates = {case: statistics.median(self.rates[case]) for case in self.streams}
        return Kernels(dict(zip(self.ops, rows, strict=True)), rates)


def probe(
    ops: Sequence[OpCase],
    streams: Sequence[StreamCase],
    memory: Arena,
    team: Team,
    rounds: int,
    seconds: float,
    progress: Progress = lambda done, total, what: None,
) -> Kernels:
    """Each kernel `rounds` times, one kernel after another; none that begins after `seconds`."""
    cases: list[OpCase | StreamCase] = [*ops, *streams]
    rows: dict[OpCase, float] = {}
    rates: dict[StreamCase, float] = {}
    ends = time.monotonic() + seconds
    for done, case in enumerate(cases):
        progress(done, len(cases), "probe kernels")
        if time.monotonic() > ends:
            break
        if isinstance(case, OpCase):
            site = OpProbe([case])
            rows[case] = statistics.median(site.seconds()[0] for _ in range(rounds))
        else:
            stream = StreamProbe(case, memory, team)
            rates[case] = statistics.median(stream.rate() for _ in range(rounds))
    return Kernels(rows, rates)
