"""eval, as tables for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hotloop.bench.evaluate import Divergence, EvalResult, Perplexity


def render(result: EvalResult) -> Iterator[RenderableType]:
    yield Text.assemble(
        (result.model, "bold"),
        f"  {result.tokens:,} tokens in windows of {result.window:,} that begin every "
        f"{result.stride:,}" + (", each with BOS" if result.bos else ""),
    )
    yield _scores(result)
    if result.divergence is not None and result.reference is not None:
        yield ""
        yield _costs(result.divergence, result.perplexity, result.reference)
        yield ""
        yield Text(_NOTE, "dim")


_NOTE = (
    "KL: Σ p ln(p / q) over the vocabulary at each scored position, p the reference's and q the "
    "model's probabilities; 0 where they agree. Same top: both find the same token the likeliest. "
    "The ± are standard errors."
)


def _table(*columns: str) -> Table:
    """The first column to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _scores(result: EvalResult) -> Table:
    columns = [("model", result.perplexity)]
    if result.reference is not None and result.against is not None:
        columns.append((result.against, result.reference))
    table = _table("", *(name for name, _ in columns))
    values = [perplexity for _, perplexity in columns]
    table.add_row("perplexity", *(f"{each.value:.4f} ± {each.error:.4f}" for each in values))
    table.add_row("bits per byte", *(f"{each.bits_per_byte:.4f}" for each in values))
    return table


def _costs(divergence: Divergence, model: Perplexity, reference: Perplexity) -> Table:
    table = _table("what it costs", "")
    table.add_row("perplexity", f"{model.value / reference.value - 1:+.2%}")
    table.add_row("KL, mean", f"{divergence.kl:.6f} ± {divergence.kl_error:.6f}")
    table.add_row("KL, median", f"{divergence.kl_median:.6f}")
    table.add_row("KL, 99%", f"{divergence.kl_99:.6f}")
    table.add_row("KL, largest", f"{divergence.kl_max:.6f}")
    table.add_row("same top token", f"{divergence.same_top:.2%}")
    table.add_row("p of the text's token, RMS change", f"{divergence.probability_rms:.2%}")
    return table
