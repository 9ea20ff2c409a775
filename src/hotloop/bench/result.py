"""The results of a benchmark, and their JSON form."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hotloop.bench.fingerprint import Fingerprint


@dataclass(frozen=True)
class Samples:
    """One quantity, measured once per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass(frozen=True)
class RungResult:
    """A rung of the ladder under one wake policy."""

    ms: Samples
    """Milliseconds per token."""
    launches: float
    """Per token."""
    syncs: int
    bytes_per_token: int

    @property
    def tok_s(self) -> float:
        return 1e3 / self.ms.median

    @property
    def gbps(self) -> float:
        return self.bytes_per_token / self.ms.median / 1e6


@dataclass(frozen=True)
class FirstToken:
    """Seconds from the start of the process to the first token.

    `start` is Python and its imports; `compile` the passes and LLVM, for the decode program and
    the one that reads prompts; `prompt` the reading of the prompt and the first token itself.
    """

    start: float
    load: float
    pack: float
    compile: float
    prompt: float
    total: float


@dataclass(frozen=True)
class BenchResult:
    """All of `hotloop bench`.

    `spinning` has the rungs whose threads spin between launches; in `rungs` they are parked.
    `read_gbps` is the reading of a buffer as large as the weights that a token needs,
    `read_gbps_dram` that of one that no cache holds.
    """

    model: str
    threads: int
    activations: str
    tokens: int
    position: int
    """Position of the first measured token."""
    rounds: int
    machine: Fingerprint
    bytes_per_token: int
    kv_bytes_per_position: int
    read_gbps: Samples
    read_gbps_dram: Samples
    dram_bytes: int
    rungs: Mapping[str, RungResult]
    spinning: Mapping[str, RungResult]
    prompt_tokens: int
    prompt_tok_s: Samples
    first_token: FirstToken
    first_token_cached: FirstToken

    def share(self, rung: RungResult) -> float:
        """The part of the measured read bandwidth that the rung's weight traffic reaches."""
        return rung.gbps / self.read_gbps.median

    def to_json(self) -> dict[str, object]:
        """As objects that `json` can write; medians, with the extremes next to them."""
        return {
            "model": self.model,
            "threads": self.threads,
            "activations": self.activations,
            "tokens": self.tokens,
            "position": self.position,
            "rounds": self.rounds,
            "machine": asdict(self.machine),
            "bytes_per_token": self.bytes_per_token,
            "kv_bytes_per_position": self.kv_bytes_per_position,
            "read_gbps": self.read_gbps.median,
            "read_gbps_range": [self.read_gbps.low, self.read_gbps.high],
            "read_gbps_dram": self.read_gbps_dram.median,
            "rungs": {name: self._rung(rung) for name, rung in self.rungs.items()},
            "rungs_spinning": {name: self._rung(rung) for name, rung in self.spinning.items()},
            "prompt_tokens": self.prompt_tokens,
            "prompt_tok_s": self.prompt_tok_s.median,
            "first_token_s": asdict(self.first_token),
            "first_token_cached_s": asdict(self.first_token_cached),
        }

    def _rung(self, rung: RungResult) -> dict[str, object]:
        return {
            "tok_s": rung.tok_s,
            "ms": rung.ms.median,
            "ms_range": [rung.ms.low, rung.ms.high],
            "gbps": rung.gbps,
            "share": self.share(rung),
            "launches": rung.launches,
            "syncs": rung.syncs,
        }
