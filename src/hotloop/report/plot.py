"""The timelines as a picture for papers and slides: PNG or SVG."""

from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.machine.quantity import show
from hotloop.report.page.data import Report, Rung
from hotloop.report.timeline import Timeline
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The words and colours of the page.
KINDS = {
    "launch": ("launching", "#c8324a"),
    "load": ("sending weights and cache", "#3b7dd8"),
    "claim": ("claiming a tile", "#8a63c9"),
    "wait": ("waiting for others", "#b9bcc4"),
    "each": ("computing for itself", "#2a9d8f"),
    "work": ("working on tiles", "#d9662b"),
    "exchange": ("between sockets", "#5a9e3d"),
}
_DONE = "#ececea"
_QUIET = "#5d6068"
#: Rungs of single ops take so much longer than the others that these would be slivers.
_OF_OPS = ("ops", "library")
#: Parts of the picture's width of which each has a bandwidth.
_BINS = 600


def plot(report: Report, path: Path, kind: str) -> None:
    """Draw the rungs' timelines, with the bandwidth above each, all on one scale of time.

    It is as long as the layers take on the rungs that launch whole layers; those of single ops go
    on beyond it. `path` becomes a file of `kind`, png or svg.
    Raises `UsageError` where matplotlib is missing, there is nothing to draw, or `path` cannot be
    written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise UsageError(
            f"{path} needs matplotlib, which is not installed; pip install 'hotloop[plot]'."
        ) from None
    drawn = [(rung, rung.timeline) for rung in report.rungs if rung.timeline]
    if not drawn:
        raise UsageError(f"{report.machine} has no timelines to draw: its time is a sum.")
    until = 1.04 * max(line.length for rung, line in drawn if rung.name not in _OF_OPS)
    heights = [size for _, line in drawn for size in (1.6, 0.4 * len(line.lanes))]
    figure = Figure(figsize=(11, 0.7 * sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    rates = [line.bandwidth(_BINS, until) for _, line in drawn]
    top = 1.08 * max(report.lane_gbps, *(rate.max() for rate in rates))
    for (rung, line), rate, above, below in zip(drawn, rates, axes[::2], axes[1::2], strict=True):
        edges = [until * i / _BINS for i in range(_BINS + 1)]
        above.stairs(rate, edges, fill=True, color=KINDS["load"][1], alpha=0.75)
        above.axhline(report.lane_gbps, color=_QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
        above.set(xlim=(0, until), ylim=(0, top))
        above.set_yticks([0, report.lane_gbps], ["0", show(1e9 * report.lane_gbps, "rate")])
        above.set_title(_caption(rung, line), loc="left", fontsize=10)
        _lanes(below, line, until)
        for each in (above, below):
            each.axvspan(min(line.length, until), until, color=_DONE, linewidth=0, zorder=0)
            each.spines[["top", "right", "left", "bottom"]].set_visible(False)
            each.tick_params(length=0, labelsize=8)
    axes[-1].set_xlabel(f"µs; {report.layers} layers")
    figure.suptitle(f"{report.model} on {report.machine}, {report.source}", parse_math=False)
    used = {slice.kind for _, line in drawn for slice in line.slices}
    legend = [Patch(color=colour, label=word) for k, (word, colour) in KINDS.items() if k in used]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    try:
        figure.savefig(path, format=kind, dpi=150)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}); give another file.") from None


def _caption(rung: Rung, line: Timeline) -> str:
    token = f"{rung.ms:.3g} ms" if rung.ms >= 1 else f"{1e3 * rung.ms:.3g} µs"
    return f"{rung.name}: {line.length:,.0f} µs for these layers, {token} per token"


def _lanes(axes: "Axes", line: Timeline, until: float) -> None:
    """What each lane is busy with until then."""
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for slice in line.slices:
        if slice.start < until:
            length = min(slice.length, until - slice.start)
            bars.setdefault((slice.lane, slice.kind), []).append((slice.start, length))
    for (lane, kind), places in bars.items():
        colour = KINDS[kind][1]
        axes.broken_barh(
            places, (lane - 0.4, 0.8), facecolor=colour, edgecolor=colour, linewidth=0.2
        )
    axes.set_yticks(range(len(line.lanes)), line.lanes)
    axes.set_ylim(len(line.lanes) - 0.5, -0.5)
