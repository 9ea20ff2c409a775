"""What has been published of kernel looping and of the machines, next to what the model says.

Each `Row` is a number that somebody published, how far that is to be trusted, and how it is
computed here. `fitted` rows set a number of a machine and say nothing about the model; `held out`
rows do. "KL" is Koeplinger et al., arXiv 2410.23668; "SN40L" Prabhakar et al., arXiv 2405.07518;
"DIAYN" Gandhi et al., MLSys 2026, known from its abstract and readers' notes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import geometric_mean
from typing import Literal

from hotloop.backends.dataflow.simulate import PLAIN, Mode, simulate
from hotloop.backends.dataflow.work import Workload
from hotloop.compiler import compile_graph
from hotloop.frontends.decoder import Step
from hotloop.ir.program import Program
from hotloop.machine.hardware import Hardware
from hotloop.machine.load import find
from hotloop.machine.machine import Machine
from hotloop.predict.models import open_shapes
from hotloop.predict.prediction import Programs, Speculation, timeline

Role = Literal["exact", "fitted", "held out", "context"]

#: The Llamas of DIAYN's list.
LLAMAS = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
#: The others of that list that hotloop has, at the precision that DIAYN gives.
OTHERS = ("qwen2.5-0.5b", "qwen2.5-72b", "mixtral-8x7b")
EIGHT_B = "llama-3.1-8b"


@dataclass
class Bench:
    """Simulates on machines some of whose numbers may be changed: kind → field → value."""

    changes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    models: "Models" = field(default_factory=lambda: Models())
    known: dict[tuple[object, ...], float] = field(default_factory=dict)
    """Seconds of the steps that were simulated before."""

    def machine(self, name: str, **more: float) -> Hardware:
        hardware = find(name)
        changed = {k: v for k, v in self.changes.get(hardware.kind, {}).items() if k not in more}
        return hardware.with_values(**changed, **more)

    def seconds(
        self,
        model: str,
        hardware: Hardware,
        schedule: str,
        context: int = 4096,
        *,
        batch: int = 1,
        tokens: int = 1,
        mode: Mode = PLAIN,
    ) -> float:
        load = Workload(context, batch, tokens)
        numbers = tuple(q.value for q in hardware.quantities.values())
        key = (model, hardware.name, numbers, schedule, load, mode)
        if key not in self.known:
            run = timeline(self.models[model, context], hardware, load, schedule, mode)
            self.known[key] = run.seconds
        return self.known[key]

    def speed(self, model: str, hardware: Hardware, schedule: str, context: int = 4096) -> float:
        return 1 / self.seconds(model, hardware, schedule, context)

    def looping(self, model: str, hardware: Hardware, *, batch: int = 1) -> float:
        """Fused over looped."""
        fused, looped = (self.seconds(model, hardware, s, batch=batch) for s in ("fused", "looped"))
        return fused / looped

    def orchestration(self, model: str, hardware: Hardware, schedule: str = "fused") -> float:
        """What hardware orchestration gains on a decode step."""
        software = self.seconds(model, hardware, schedule, mode=Mode(software=True))
        return software / self.seconds(model, hardware, schedule)

    def prefill_orchestration(self, model: str, hardware: Hardware, tokens: int) -> float:
        """The same on a prompt of `tokens` tokens."""
        program, load = self.models.prefill(model, tokens), Workload(tokens)
        times = [simulate(program, hardware, load, Mode(software=s)).seconds for s in (True, False)]
        return times[0] / times[1]

    def speculation(self, target: str, draft: str, tokens: int, acceptance: float) -> float:
        """Speed over plain decoding, both models looped on 16 sockets."""
        return Speculation(tokens, acceptance).expected / self._round(target, draft, tokens)

    def acceptance(self, target: str, draft: str, tokens: int, speedup: float) -> float:
        """The acceptance at which speculation gives `speedup`; 1 where none does."""
        needed = speedup * self._round(target, draft, tokens)
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            if Speculation(tokens, middle).expected < needed:
                low = middle
            else:
                high = middle
        return high

    def _round(self, target: str, draft: str, tokens: int) -> float:
        """A round of draft and check, in plain steps of the target."""
        hardware = self.machine("sn40l-x16")
        drafting = tokens * self.seconds(draft, hardware, "looped")
        checking = self.seconds(target, hardware, "looped", tokens=tokens + 1)
        return (drafting + checking) / self.seconds(target, hardware, "looped")


class Models:
    """Programs by model and context, made once."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, int], Programs] = {}
        self._prefill: dict[tuple[str, int], Program] = {}

    def __getitem__(self, key: tuple[str, int]) -> Programs:
        if key not in self._programs:
            self._programs[key] = Programs(open_shapes(key[0]), key[1])
        return self._programs[key]

    def prefill(self, model: str, tokens: int) -> Program:
        """The fused program that reads a prompt."""
        if (model, tokens) not in self._prefill:
            graph = open_shapes(model).graph(Step(tokens=tokens, context=tokens, head=False))
            compiled = compile_graph(graph, Machine("a chip", 1), "fused")
            self._prefill[model, tokens] = compiled.program
        return self._prefill[model, tokens]


@dataclass(frozen=True)
class Row:
    """A published number: `value`, or anything from `low` to `high`.

    `trust` says where it was read; `kinds` are the machines whose numbers it depends on; `remark`
    what would have to be true where the model does not reproduce it.
    """

    name: str
    published: str
    low: float
    high: float
    unit: str
    role: Role
    trust: str
    compute: Callable[[Bench], float]
    kinds: tuple[str, ...] = ()
    remark: str = ""

    @cached_property
    def exact(self) -> bool:
        return self.low == self.high

    def error(self, simulated: float) -> float:
        """Relative distance from the published range; 0 inside of it."""
        if self.low <= simulated <= self.high:
            return 0.0
        nearest = self.low if simulated < self.low else self.high
        return simulated / nearest - 1


def _point(
    name: str,
    value: float,
    unit: str,
    role: Role,
    trust: str,
    compute: Callable[[Bench], float],
    kinds: tuple[str, ...] = (),
    remark: str = "",
) -> Row:
    return Row(name, f"{value:g}", value, value, unit, role, trust, compute, kinds, remark)


def _one_h100(bench: Bench) -> Hardware:
    """One H100 at the 3.35 TB/s of its data sheet, of which a stream reaches 90 %."""
    return bench.machine("dgx-h100", sockets=1, memory_bandwidth=3.35e12, memory_share=0.9)


def _share_1b(bench: Bench, schedule: str) -> float:
    hardware = _one_h100(bench)
    nbytes = bench.models["llama-3.2-1b", 256].weight_bytes
    seconds = bench.seconds("llama-3.2-1b", hardware, schedule, 256)
    return 100 * nbytes / seconds / hardware["memory_bandwidth"]


def _all_bytes(bench: Bench) -> float:
    """Bytes per token as KL's table counts them: all parameters, the whole cache."""
    programs = bench.models[EIGHT_B, 4096]
    return programs.weight_bytes + 4096 * programs.position_bytes


def _paper_share(bench: Bench, machine: str, schedule: str) -> float:
    hardware = bench.machine(machine)
    peak = hardware["memory_bandwidth"] * hardware["sockets"]
    return 100 * _all_bytes(bench) / bench.seconds(EIGHT_B, hardware, schedule) / peak


def _h100_speed(bench: Bench, sockets: int = 8) -> float:
    return bench.speed(EIGHT_B, bench.machine("dgx-h100", sockets=sockets), "library")


def _over_h100(bench: Bench, machine: str) -> float:
    return bench.speed(EIGHT_B, bench.machine(machine), "looped") / _h100_speed(bench)


def _sockets(bench: Bench, model: str, schedule: str, few: int, many: int) -> float:
    machines = [bench.machine("sn40l-x16", sockets=n) for n in (many, few)]
    return bench.speed(model, machines[0], schedule) / bench.speed(model, machines[1], schedule)


def _speculation(target: str, draft: str, tokens: int, at_5: float, bench: Bench) -> float:
    """With the acceptance that gives `at_5` for five tokens of the draft."""
    return bench.speculation(target, draft, tokens, bench.acceptance(target, draft, 5, at_5))


def _loopings(bench: Bench) -> list[float]:
    return [bench.looping(model, bench.machine("sn40l-x16")) for model in LLAMAS]


_CHIP, _GPU, _BOTH = ("dataflow",), ("gpu",), ("dataflow", "gpu")

ROWS: tuple[Row, ...] = (
    _point("8B: kernels of the layers on a GPU", 320, "calls", "exact", "DIAYN notes A, B",
           lambda b: b.models[EIGHT_B, 4096].calls["library"] - 3),
    _point("8B: calls, fused", 35, "calls", "exact", "32 + 3, derived from DIAYN notes",
           lambda b: b.models[EIGHT_B, 4096].calls["fused"]),
    _point("8B: calls, looped", 4, "calls", "exact", "DIAYN notes A, B",
           lambda b: b.models[EIGHT_B, 4096].calls["looped"]),
    Row("8B: parameters", "14.9", 14.85, 15.0, "GiB", "exact", "KL, first row of table 1",
        lambda b: b.models[EIGHT_B, 4096].weight_bytes / 2**30),
    Row("8B: KV cache at 4K", "0.5", 0.45, 0.55, "GiB", "exact", "KL, first row of table 1",
        lambda b: 4096 * b.models[EIGHT_B, 4096].position_bytes / 2**30),
    Row("8B: bytes per token at 4K", "15.4", 15.35, 15.5, "GiB", "exact",
        "KL, first row of table 1", lambda b: _all_bytes(b) / 2**30,
        remark="The table counts the whole embedding, of which a token reads a row; the simulated "
               "machine reads 14.5 GiB."),
    Row("1B on one H100, a kernel per group of ops", "31 (vLLM) – 52 (SGLang)", 31, 52,
        "% of 3.35 TB/s", "fitted", "Hazy Research, May 2025: 78 % is 2.5 and 1.5 times theirs",
        lambda b: _share_1b(b, "library"), _GPU,
        "Sets `fill` of an H100, to the middle (40 %)."),
    _point("1B on one H100, one launch for all tokens", 78, "% of 3.35 TB/s", "held out",
           "Hazy Research, May 2025", lambda b: _share_1b(b, "tokens"), _GPU,
           "Their megakernel is written by hand, with other stages than ours."),
    _point("8B on one H100, kernels launched by the host", 8.4, "ms", "held out",
           "a blog's summary",
           lambda b: 1e3 * b.seconds(EIGHT_B, _one_h100(b), "library", 256,
                                     mode=Mode(software=True)), _GPU, "As the next row."),
    _point("8B on one H100, a graph of launches", 5.1, "ms", "held out", "a blog's summary",
           lambda b: 1e3 * b.seconds(EIGHT_B, _one_h100(b), "library", 256), _GPU,
           "Reading the weights alone takes 4.5 ms at the peak and 5.0 at 90 % of it, so 5.1 needs "
           "launches that cost nothing, or a precision other than bf16."),
    _point("8B on DGX H100 at 4K", 300, "tok/s", "held out", "DIAYN notes A, B (about 300)",
           _h100_speed, _GPU,
           "300 needs a `fill` of 5.4 µs: with it, 1B reaches 35 % of one H100 (row 7), "
           "between vLLM's 31 (which gives 263 tok/s here) and SGLang's 52 (528); the next row is "
           "21 %, and SN40L is 2.0 and 3.5 times as fast. Or an all-reduce of 15 µs, between a "
           "one-shot's 6 and NCCL's 22."),
    _point("8B on DGX H100: part of 24 TB/s", 21, "%", "held out", "KL abstract",
           lambda b: _paper_share(b, "dgx-h100", "library"), _GPU,
           "Bytes as KL counts them. No efficiency enters but that of a long stream, 97 %."),
    _point("8B, eight over four H100", 1.42, "×", "held out", "DIAYN notes disagree on the base",
           lambda b: _h100_speed(b) / _h100_speed(b, 4), _GPU),
    _point("8B on SN40L-16 at 8K, looped", 1042, "tok/s", "fitted",
           "SN40L table IV; as served, so a lower bound",
           lambda b: b.speed(EIGHT_B, b.machine("sn40l-x16"), "looped", 8192), _CHIP,
           "Sets, with the next row, `argument_load` and `start`."),
    _point("looping alone, geometric mean of five Llamas, 16 sockets", 1.6, "×", "fitted",
           "DIAYN notes A, B, C, over another set of models",
           lambda b: geometric_mean(_loopings(b)), _CHIP),
    _point("looping alone, at most", 2.2, "×", "held out", "KL abstract",
           lambda b: max(_loopings(b)), _CHIP),
    Row("looping alone, 405B", "less than for smaller layers", 1.0, 1.3, "×", "held out",
        "shape: falls with layer size at batch 1", lambda b: _loopings(b)[-1], _CHIP),
    _point("looping alone, geometric mean with Qwen 2.5 and Mixtral, 16 sockets", 1.6, "×",
           "held out", "DIAYN notes A, B, C: eight of the eleven models of its list",
           lambda b: geometric_mean(
               [b.looping(model, b.machine("sn40l-x16")) for model in (*LLAMAS, *OTHERS)]), _CHIP),
    _point("looping alone, Qwen 2.5 72B, batch 64", 2.0, "×", "held out",
           "DIAYN notes A, B, C: near 2 at large batch",
           lambda b: b.looping("qwen2.5-72b", b.machine("sn40l-x16"), batch=64), _CHIP,
           "Needs a boundary whose cost grows with the batch (filling and draining a pipeline "
           "sample by sample, while no weights are fetched): some 90 µs more per layer. Here a "
           "boundary costs the same for any batch."),
    _point("8B on SN40L-8 at 4K, looped", 607, "tok/s", "held out",
           "2.0 × 304, derived from STeP and KL",
           lambda b: b.speed(EIGHT_B, b.machine("sn40l-x8"), "looped"), _CHIP),
    _point("8B on SN40L-16 at 4K, looped", 1123, "tok/s", "held out",
           "3.7 × 304, derived from STeP and KL",
           lambda b: b.speed(EIGHT_B, b.machine("sn40l-x16"), "looped"), _CHIP),
    _point("8B, SN40L-8 over DGX H100", 2.0, "×", "held out", "STeP (up to about 2)",
           lambda b: _over_h100(b, "sn40l-x8"), _BOTH,
           "Follows the simulated H100, which is faster than the published one."),
    _point("8B, SN40L-16 over DGX H100", 3.7, "×", "held out", "KL abstract (up to)",
           lambda b: _over_h100(b, "sn40l-x16"), _BOTH, "As the row above."),
    Row("8B on SN40L-16: part of 25.6 TB/s", "70 – 82", 70, 82, "%", "held out",
        "band derived in the project's notes from the 3.7 and the 21 %",
        lambda b: _paper_share(b, "sn40l-x16", "looped"), _CHIP),
    Row("70B on SN40L-16: part of 25.6 TB/s", "over 75", 75, 92, "%", "held out",
        "DIAYN abstract; KL's abstract says over 90",
        lambda b: 100 * b.models["llama-3.1-70b", 4096].weight_bytes
        * b.speed("llama-3.1-70b", b.machine("sn40l-x16"), "looped") / 25.6e12, _CHIP,
        "Over 90 % needs a stream that reaches more than the 88 % assumed of it."),
    _point("DeepSeek-R1 on SN40L-16", 198, "tok/s", "held out", "an abstract of DAC 62",
           lambda b: b.speed("deepseek-r1", b.machine("sn40l-x16"), "looped"), _CHIP,
           "As served, so a lower bound; neither the context nor whether it was looped is said. "
           "Here every expert is cut over all sockets, and keys and values lie expanded (25 GB at "
           "4K). If each expert lay whole on one socket, the busiest of 16 would read 2.0 of a "
           "token's 8 on average, and all experts take 3.8 ms instead of 0.9; with keys and values "
           "as the latents that they are made from (0.3 GB), that adds up to 5.2 ms, 192 tok/s."),
    _point("8B on SN40L-8 at 8K, not looped", 430, "tok/s", "held out",
           "a vendor's README of mid-2024; that it was not looped is inferred from its date",
           lambda b: b.speed(EIGHT_B, b.machine("sn40l-x8"), "fused", 8192), _CHIP),
    Row("8B, 16 over 8 sockets, looped", "up to 2.5, base not stated", 1.0, 2.5, "×", "held out",
        "KL abstract", lambda b: _sockets(b, EIGHT_B, "looped", 8, 16), _CHIP),
    Row("8B, 16 over 8 sockets, not looped", "visibly worse", 1.0, 1.5, "×", "held out", "KL",
        lambda b: _sockets(b, EIGHT_B, "fused", 8, 16), _CHIP),
    _point("3B, 16 over 4 sockets, looped", 2.5, "×", "context", "KL abstract (up to), if the "
           "base were four sockets",
           lambda b: _sockets(b, "llama-3.2-3b", "looped", 4, 16), _CHIP),
    _point("3B, 16 over 4 sockets, not looped", 1.8, "×", "context", "no number was recovered",
           lambda b: _sockets(b, "llama-3.2-3b", "fused", 4, 16), _CHIP),
    Row("hardware over software orchestration, decode, 8B fused, 8 sockets", "1.4 (least)", 1.4,
        1.4, "×", "fitted", "SN40L: 1.4 to 8",
        lambda b: b.orchestration(EIGHT_B, b.machine("sn40l-x8")), _CHIP,
        "Sets `host_call`."),
    _point("the same, at most, of 0.5B and 1B, fused and an op per call", 8, "×", "held out",
           "SN40L: 1.4 to 8",
           lambda b: max(b.orchestration(model, b.machine("sn40l-x8"), schedule)
                         for model in ("qwen2.5-0.5b", "llama-3.2-1b")
                         for schedule in ("fused", "ops")), _CHIP,
           "The host issues two commands for a call, and a third where the program changes; the "
           "smaller the kernels, the larger the gain, so that 1.4 is that of the largest model "
           "measured, which is not known here. Were it one with the layers of 70B, `host_call` "
           "would be 34 µs and this row 3.3; of 405B, 115 µs and 8.6."),
    Row("hardware over software orchestration, prefill of 4096, 8B, 8 sockets", "at most 1.1", 1.0,
        1.1, "×", "held out", "SN40L",
        lambda b: b.prefill_orchestration(EIGHT_B, b.machine("sn40l-x8"), 4096), _CHIP),
    Row("8B fused over unfused, 8 sockets", "1 – 13", 1.0, 13.0, "×", "held out",
        "SN40L, on decode",
        lambda b: b.speed(EIGHT_B, b.machine("sn40l-x8"), "fused")
        / b.speed(EIGHT_B, b.machine("sn40l-x8"), "ops"), _CHIP),
    Row("70B on SN40L-16 at 8K, from speculation", "2.6 × its roof", 2.0, 3.5, "×", "context",
        "SN40L table IV: 457 tok/s, with a draft that is not named",
        lambda b: 457 / b.speed("llama-3.1-70b", b.machine("sn40l-x16"), "looped", 8192), _CHIP,
        "What speculation must have given."),
    *(
        row
        for target, draft, at_5, at_9 in (
            ("llama-3.1-70b", "llama-3.2-1b", 3.5, 4.7),
            ("llama-3.1-70b", "llama-3.1-8b", 2.8, 3.5),
            ("llama-3.1-405b", "llama-3.2-3b", 4.0, 6.1),
        )
        for row in (
            _point(f"{target} with a draft of {draft}, 5 tokens", at_5, "×", "fitted",
                   "DIAYN note A, table 4",
                   partial(_speculation, target, draft, 5, at_5), _CHIP,
                   "Sets how many of the draft's tokens are right, which is not published."),
            _point(f"{target} with a draft of {draft}, 9 tokens", at_9, "×", "held out",
                   "DIAYN note A, table 4",
                   partial(_speculation, target, draft, 9, at_5), _CHIP,
                   "Needs tokens that are right more often the longer the draft, or a draft that "
                   "costs less than ours: theirs is scheduled for all its tokens at once."),
        )
    ),
)  # fmt: skip
"""In the order of the table."""
