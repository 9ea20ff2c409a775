"""The timelines as a picture for papers and slides: PNG or SVG."""

from pathlib import Path

from hotloop.report.page.data import Report
from hotloop.util.errors import UsageError

#: As on the page.
COLOURS = {
    "work": "#d9662b",
    "load": "#3b7dd8",
    "wait": "#b9bcc4",
    "claim": "#8a63c9",
    "each": "#2a9d8f",
    "launch": "#c8324a",
    "exchange": "#5a9e3d",
}


def plot(report: Report, path: Path, kind: str) -> None:
    """Draw the rungs' timelines, with the bandwidth above each, all on one scale of time.

    `path` becomes a file of `kind`, png or svg.
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
    heights = [size for _, line in drawn for size in (2.0, 0.4 * len(line.lanes))]
    figure = Figure(figsize=(11, 0.7 * sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    kinds: set[str] = set()
    for (rung, line), above, below in zip(drawn, axes[::2], axes[1::2], strict=True):
        rates = line.bandwidth()
        at = [line.length * (i + 0.5) / len(rates) for i in range(len(rates))]
        above.fill_between(at, rates, step="mid", color=COLOURS["load"], alpha=0.6, linewidth=0)
        above.set_ylabel("GB/s")
        above.set_ylim(bottom=0)
        above.set_title(f"{rung.name}: {rung.ms:,.3f} ms per token", loc="left", fontsize=10)
        for slice in line.slices:
            kinds.add(slice.kind)
            place = slice.lane, slice.length
            below.barh(*place, left=slice.start, height=0.8, color=COLOURS[slice.kind])
        below.set_yticks(range(len(line.lanes)), line.lanes, fontsize=8)
        below.invert_yaxis()
    axes[-1].set_xlabel(f"µs; {report.layers} layers")
    figure.suptitle(f"{report.model} on {report.machine}, {report.source}", parse_math=False)
    legend = [Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if kind in kinds]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    try:
        figure.savefig(path, format=kind, dpi=150)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}); give another file.") from None
