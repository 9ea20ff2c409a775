"""The page of `hotloop report` for a machine that is not here: every rung simulated."""

from collections.abc import Sequence
from dataclasses import replace

from hotloop.backends.dataflow.simulate import Mode, Timeline
from hotloop.backends.dataflow.work import Workload
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.ir.program import Program
from hotloop.machine.hardware import Hardware
from hotloop.machine.machine import Machine
from hotloop.machine.quantity import show
from hotloop.predict.cpu import UNPROBED, Kernels, costs_of
from hotloop.predict.prediction import GENERATION, TOKENS, Programs, spilled, timeline
from hotloop.report import timeline as pictures
from hotloop.report.counts import count
from hotloop.report.page.data import Report, Row, Rung, launch_cost, pass_views, products
from hotloop.report.simulated import shares

#: Parts of a token smaller than this are one row of that table.
_LEAST = 1e-4


def predicted_report(
    programs: Programs, hardware: Hardware, batch: int = 1, kernels: Kernels = UNPROBED
) -> Report:
    """A step of each rung, with its timeline where the machine is simulated.

    `kernels` are what was probed of a CPU's, in the programs of all rungs. Raises
    `OutOfMemoryError` where weights and caches do not fit in the machine's memories.
    """
    load = Workload(programs.context, batch)
    mode = Mode(spilled=spilled(programs, hardware, load))
    runs = {
        name: timeline(programs, hardware, load, name, mode, record=True, kernels=kernels)
        for name in _rungs(hardware)
    }
    launches = {name: run.launches / _steps(name, hardware) for name, run in runs.items()}
    slope = launch_cost({name: (1e3 * run.seconds, launches[name]) for name, run in runs.items()})
    cut = pictures.middle_layers(programs["looped"])
    sockets = hardware["sockets"]
    stages: dict[str, Program] = {}
    machine = Machine(hardware.name, programs.cores)
    compiled = compile_graph(programs.graph, machine, after_pass=stages.__setitem__)
    peak = _peak(programs, hardware, runs["looped"].streamed) / 1e9
    compute = hardware["compute"] * sockets / 1e9 if hardware.has("compute") else None
    return Report(
        model=programs.decoder.file.path.name,
        machine=hardware.title,
        source="simulated",
        facts=(
            ("machine", hardware.name),
            ("context", f"{programs.context:,}"),
            ("sequences", f"{batch:,}"),
            ("weights", show(programs.weight_bytes, "size")),
            ("KV cache", show(programs.position_bytes * programs.context * batch, "size")),
        ),
        notes=_notes(hardware),
        layers=cut.layers,
        gbps=peak * sockets,
        lane_gbps=peak,
        gflops=compute,
        operations=products(programs["looped"]) * batch,
        rungs=tuple(
            Rung(
                name=name,
                ms=1e3 * run.seconds,
                calls=count(programs[name]).calls,
                launches=launches[name],
                syncs=count(programs[name]).syncs,
                nbytes=run.streamed * sockets,
                launch_us=_launch_us(run, slope),
                timeline=pictures.simulated(run, _steps(name, hardware), cut),
                rows=_rows(run, _steps(name, hardware)),
            )
            for name, run in runs.items()
        ),
        passes=pass_views(programs.graph, stages, compiled.remarks),
    )


def _rungs(hardware: Hardware) -> Sequence[str]:
    """The ladder; on a GPU with the kernels that its libraries have, after single ops."""
    first, *rest = SCHEDULES
    return (first, "library", *rest) if hardware.kind == "gpu" else SCHEDULES


def _steps(name: str, hardware: Hardware) -> int:
    """Steps of a run: one launch of the rung `tokens` makes several."""
    if name != "tokens":
        return 1
    return GENERATION if hardware.kind == "cpu" else TOKENS


def _peak(programs: Programs, hardware: Hardware, nbytes: float) -> float:
    """Bytes per second that a socket's memory, or a cache that holds it all, gives a stream."""
    if hardware.kind == "cpu":
        return costs_of(hardware, programs.cores, nbytes).stream
    return hardware["memory_bandwidth"] * hardware["memory_share"]


def _launch_us(run: Timeline, slope: float) -> float:
    """µs that the controller is busy for a launch; where it has no spans, the ladder's slope."""
    spans = [span for span in run.spans if span.resource == "controller"]
    if not spans:
        return slope
    return 1e6 * sum(span.end - span.start for span in spans) / run.launches


def _rows(run: Timeline, steps: int) -> tuple[Row, ...]:
    """Where the time of a token goes, in steady state; it adds up to the token's.

    Of several steps, all but the first, which has the launch.
    """
    if not run.spans:
        return ()
    first = len(run.executed) // steps
    begin = max(end for _, end in run.executed[:first]) if steps > 1 else 0.0
    tokens = max(1, steps - 1)
    rows, rest = [], Row("the rest", 0, 1e6 * run.seconds, 0.0, 0.0)
    for share in shares(run.spans, begin, begin + run.seconds * tokens):
        us = 1e6 * share.seconds / tokens
        nbytes = share.nbytes / tokens if "memory" in share.resource else 0.0
        if us >= _LEAST * 1e6 * run.seconds:
            busy = "launch" if share.resource == "controller" else share.resource
            rows.append(Row(f"{busy}: {share.what}", 0, us, 0.0, nbytes))
            rest = replace(rest, us=rest.us - us)
        else:
            rest = replace(rest, nbytes=rest.nbytes + nbytes)
    return (*rows, replace(rest, us=max(0.0, rest.us)))


def _notes(hardware: Hardware) -> tuple[str, ...]:
    clock = (
        "Nothing here was measured: each rung's program, as the compiler made it, ran on a "
        f"simulated {hardware.title}, whose numbers hotloop machines {hardware.name} lists with "
        "their sources."
    )
    if hardware.kind == "cpu":
        return (clock, "The time of a CPU is a sum of terms, which has no timeline.")
    return (
        clock,
        "Timelines show one of equal sockets, and bandwidth is that of its own memory. Where "
        "memory is idle, it waits for a launch, for room on the chip, or for a router's choice of "
        "experts.",
        "The cost of a launch is the time in which the controller is busy with it, on average.",
        "Where the time of a token goes: each instant counts once, for what memory sends then, "
        "else for a launch, an exchange over the link, or what the units compute. So what memory "
        "hides takes no time. In the rest nothing is busy: the host is, between two tokens, or a "
        "latency passes.",
    )
