"""Metrics for Prometheus: what the engine counts, and how long requests and tokens take."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotloop.runtime.engine import Engine

_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_REQUEST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


class Metrics:
    """A registry of its own, so that a process may hold several servers."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "hotloop_requests",
            "Answered requests, by path and status.",
            ("path", "status"),
            registry=self._registry,
        )
        self.first = Histogram(
            "hotloop_time_to_first_token_seconds",
            "From a request's arrival at the engine to its first token.",
            buckets=_REQUEST_SECONDS,
            registry=self._registry,
        )
        self.between = Histogram(
            "hotloop_inter_token_seconds",
            "Between one token of a stream and the next.",
            buckets=_TOKEN_SECONDS,
            registry=self._registry,
        )
        self.seconds = Histogram(
            "hotloop_request_seconds",
            "From a request's head to the end of its answer.",
            buckets=_REQUEST_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_EngineMetrics(engine))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineMetrics(Collector):
    """What the engine knows, read when somebody asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load()
        yield _gauge("running", "Sequences that run.", load.running)
        yield _gauge("waiting", "Sequences that wait.", load.waiting)
        yield _gauge("pages", "Pages of the KV cache.", load.pages)
        yield _gauge("pages_free", "Pages that no sequence holds.", load.pages_free)
        yield _gauge("pages_cached", "Pages that the prefix cache knows.", load.pages_cached)
        yield _counter("preemptions", "Sequences put back for lack of pages.", load.preemptions)
        yield _counter("prompt_tokens", "Tokens of prompts.", load.prompt_tokens)
        yield _counter("cached_tokens", "Tokens of prompts found in the cache.", load.cached_tokens)
        yield _counter("output_tokens", "Tokens generated.", load.output_tokens)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hotloop_{name}", help, value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"hotloop_{name}", help, value)
