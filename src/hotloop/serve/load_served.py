"""From a loaded model to one that is served: an executor, an engine that runs, and its facts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hotloop.api import Model
from hotloop.backends.cpu.bandwidth import read_gbps
from hotloop.frontends.config import Fields
from hotloop.ir.ops import CHUNK
from hotloop.report.counts import traffic
from hotloop.runtime.engine import Engine
from hotloop.runtime.pooling import Pooling
from hotloop.serve.metrics import Metrics
from hotloop.serve.served import Served
from hotloop.util.errors import UnsupportedError

#: Room in the KV cache, where nobody says how much: so many sequences as long as the context.
FULL_CONTEXTS = 2
#: How the memory's speed is measured: on a buffer like the weights, but no larger than this.
PROBE_BYTES = 1 << 28
PROBE_SECONDS = 0.3


@contextmanager
def make_served(
    model: Model,
    name: str | None,
    parallel: int,
    pages: int | None,
    queue: int,
    pooling: Pooling | None = None,
) -> Iterator[Served]:
    """`model`, called `name` (None: as its file), for `parallel` requests at a time.

    `pages` None makes room for two full contexts, or for as much as all rows can fill where that
    is less: prompts are seldom long, and what is too much waits. `pooling` None is what the
    model's file says.
    """
    if model.tokenizer is None:
        raise UnsupportedError(f"{model.path} has no tokenizer, which serving text needs.")
    if pages is None:
        pages = min(parallel, FULL_CONTEXTS) * -(-model.context // CHUNK)
    executor = model.batch(parallel, pages)
    engine = Engine(executor, queue)
    weight_bytes = traffic(model.program).weight_bytes
    served = Served(
        name or model.path.stem or model.path.name,
        engine,
        model.tokenizer,
        model.context,
        model.config.vocab,
        int(time.time()),
        Metrics(engine),
        width=model.config.width,
        pooling=pooling or _pooling(model),
        weight_bytes=weight_bytes,
        bandwidth=1e9 * read_gbps(min(weight_bytes, PROBE_BYTES), model.threads, PROBE_SECONDS),
        facts=_facts(model, parallel),
    )
    executor.compile()
    engine.start()
    try:
        yield served
    finally:
        engine.close()
        executor.close()


def _pooling(model: Model) -> Pooling:
    """As the model's file says, in GGUF's numbers; else the last token, which has seen all."""
    said = Fields(model.decoder.file).get("pooling_type", "", int, 0)
    return "mean" if said == 1 else "last"


def _facts(model: Model, parallel: int) -> dict[str, str]:
    """What people ask of a model, in words."""
    config = model.config
    read = traffic(model.program)
    formats = ", ".join(sorted(read.weights, key=lambda name: -read.weights[name]))
    return {
        "file": model.path.name,
        "layers": str(config.layers),
        "vocabulary": f"{config.vocab:,}",
        "weights": formats,
        "read per token": f"{read.weight_bytes / 1e6:.0f} MB",
        "context": f"{model.context:,}",
        "threads": str(model.threads),
        "together": str(parallel),
    }
