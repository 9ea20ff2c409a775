"""A prediction as a table for a terminal."""

from rich import box
from rich.table import Table

from hotloop.machine.quantity import show
from hotloop.predict.prediction import Prediction


def prediction_table(prediction: Prediction) -> Table:
    """What a step takes, and of what."""
    p = prediction
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rows = [
        ("tokens per second", f"{p.tok_s:,.1f}", "" if p.batch == 1 else f"{p.batch} sequences"),
        ("a step", f"{p.ms:,.3f} ms", f"schedule {p.schedule}, context {p.context:,}"),
        ("bandwidth", f"{100 * p.share:.1f}%", f"of {show(p.peak, 'rate')}"),
        ("bytes per token", show(p.bytes_per_token, "size"), ""),
        ("weights", show(p.weight_bytes, "size"), ""),
        ("KV cache", show(p.kv_bytes, "size"), "of all positions and sequences"),
        ("looped over fused", f"{p.speedup_looped:.2f}×", "on this machine"),
    ]
    if p.spilled:
        rows.append(("from second memory", f"{100 * p.spilled:.1f}%", "of what a step reads"))
    rows += [(f"calls, {name}", f"{number:,}", "per step") for name, number in p.calls.items()]
    for row in rows:
        table.add_row(*row)
    return table
