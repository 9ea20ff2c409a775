"""Draw the README's picture from a run of the bench.

    hotloop bench -t 2 --json ladder.json
    python benchmarks/draw_ladder.py ladder.json docs/ladder.png

One bar for each rung: tokens per second with the team parked between launches, and a thinner one
with it spinning; the line is what the memory can give (its read bandwidth over the bytes a token
reads). Needs matplotlib, which `pip install hotloop[plot]` brings.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, PARKED, SPINNING, LIMIT = "#222222", "#3b6ea5", "#a9c4de", "#b5442e"
TEXT = {
    "ops": "ops\na launch per op",
    "fused": "fused\na launch per layer",
    "looped": "looped\na launch per token",
    "pipelined": "pipelined\nfewer syncs, prefetch",
    "tokens": "tokens\na launch per generation",
}


def draw(result: dict[str, Any], path: Path) -> None:
    rungs, spinning = result["rungs"], result.get("rungs_spinning", {})
    names = [name for name in TEXT if name in rungs]
    limit = result["read_gbps"] * 1e9 / result["bytes_per_token"]
    figure, axes = plt.subplots(figsize=(9, 3.6), dpi=150)
    for y, name in enumerate(names):
        rate = rungs[name]["tok_s"]
        axes.barh(y, rate, height=0.55, color=PARKED, label="threads parked" if y == 0 else None)
        text = f"{rate:.0f} tok/s · {100 * rungs[name]['share']:.0f}%"
        if rate > limit / 3:
            axes.text(rate - limit * 0.01, y, text, va="center", ha="right", color="w", fontsize=9)
        else:
            axes.text(rate + limit * 0.01, y, text, va="center", color=INK, fontsize=9)
        if name in spinning:
            rate = spinning[name]["tok_s"]
            axes.barh(
                y + 0.36, rate, height=0.12, color=SPINNING, label="spinning" if y == 0 else None
            )
    axes.axvline(limit, color=LIMIT, linewidth=1.2)
    memory = f"plain read: {limit:.0f} tok/s"
    axes.text(limit, -0.75, memory, ha="center", color=LIMIT, fontsize=9)
    axes.set_yticks(range(len(names)), [TEXT[name] for name in names], fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, limit * 1.3)
    axes.set_xlabel("tokens per second, decode", color=INK, fontsize=9)
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="center right", frameon=False, fontsize=8)
    figure.text(0.01, 0.01, describe(result), fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path)


def describe(result: dict[str, Any]) -> str:
    machine = result["machine"]
    cpu = machine.get("cpu", "") if isinstance(machine, dict) else str(machine)
    model = Path(str(result["model"])).name
    return f"{model}, {result['threads']} threads, {cpu}; read at {result['read_gbps']:.1f} GB/s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the ladder from the bench's JSON.")
    parser.add_argument("json", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(json.loads(options.json.read_text()), options.picture)
