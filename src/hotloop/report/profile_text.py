"""A profile as a table for a terminal of 100 columns."""

from rich import box
from rich.table import Table

from hotloop.report.profile import PHASES, Profile, StageProfile


def profile_table(profile: Profile) -> Table:
    """A row for each stage, then what is outside of them, then all of a token."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = ("stage", "passes", *PHASES, "share", "tiles", "MB", "GB/s")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for stage in profile.stages:
        table.add_row(*_stage(stage, profile))
    table.add_section()
    outside = profile.outside / profile.token
    phases = [_us(profile.phase(name)) for name in PHASES]
    table.add_row("outside the stages", "", "", "", "", _us(profile.outside), f"{outside:.1%}")
    nbytes = sum(stage.nbytes for stage in profile.stages)
    table.add_row(
        f"token: {profile.token:,.0f} µs",
        f"{sum(stage.passes for stage in profile.stages):,}",
        *phases,
        "100.0%",
        "",
        f"{nbytes / 1e6:.1f}",
        f"{nbytes / profile.token / 1e3:.1f}",
        style="bold",
    )
    return table


def _stage(stage: StageProfile, profile: Profile) -> list[str]:
    waits = stage.kernel == "token"
    return [
        "end of the token" if waits else f"@{stage.kernel} %{stage.stage}",
        f"{stage.passes:,}",
        *(_us(getattr(stage, name)) for name in PHASES),
        f"{stage.total / profile.token:.1%}",
        "" if waits else _tiles(stage.tiles),
        f"{stage.nbytes / 1e6:.1f}" if stage.nbytes else "",
        "" if stage.gbps is None else f"{stage.gbps:.1f}",
    ]


def _us(value: float) -> str:
    """Tenths only where they tell something: of a thread that was held up, the columns are wide."""
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _tiles(tiles: tuple[float, ...]) -> str:
    low, high = min(tiles), max(tiles)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f}–{high:.1f}"
