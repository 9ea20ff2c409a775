"""A rung of a decoder's ladder, to be timed: it decodes from any position on, without a prompt."""

from dataclasses import replace

from hotloop.backends.cpu.executable import Weights
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.compiler import compile_graph
from hotloop.frontends.decoder import Decoder, Step
from hotloop.machine.host import host
from hotloop.predict.cpu import Shape, shape
from hotloop.runtime.batch import BatchExecutor
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling


class Rung:
    """The rung `name` for `batch` sequences. What the cache holds makes no difference to the time.

    `close` gives back what its executor holds.
    """

    def __init__(
        self, decoder: Decoder, step: Step, name: str, weights: Weights, team: Team, batch: int = 1
    ) -> None:
        pages = batch * step.chunks
        self.batch = batch
        self.limit = step.context
        self.vocab = decoder.config.vocab
        self.executor = BatchExecutor(decoder, step, name, weights, team, batch, pages)
        self.close = self.executor.close
        graph = decoder.graph(replace(step, tokens=batch, batch=True, cache_pages=pages))
        self.program = compile_graph(graph, host(team.threads), name).program

    def decode(self, position: int, tokens: int) -> float:
        """Seconds that a step takes, of `tokens` steps from `position` on."""
        ids = [(7 + 7919 * at) % self.vocab for at in range(position)]
        each = self.executor.pages // self.batch
        tables = [list(range(at * each, (at + 1) * each)) for at in range(self.batch)]
        rows = [Row(ids, len(ids), self.limit, table, Sampling()) for table in tables]
        return self.executor.time_decode(rows, tokens) / tokens

    def shape(self, position: int) -> Shape:
        """What the time of a step at `position` depends on."""
        return shape(self.program, Workload(position))
