"""eval: how well a model predicts a text, and how far it is from a reference.

The text's tokens are cut into windows that overlap: each begins `stride` tokens after the one
before, and scores only the tokens that no earlier window scored. So every token is scored once,
with at least `window - stride` tokens before it, but for those of the first window. Where the
model's prompts begin with BOS, every window does.

    perplexity     exp of the mean of -ln p(token)
    KL divergence  of a position: Σ p ln(p / q) over the vocabulary, p the reference's and q the
                   model's probabilities
    same top       how often both find the same token the likeliest
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from hotloop.api import Model
from hotloop.util.errors import ContextError, UsageError

Progress = Callable[[int, int | None, str], None]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """The tokens of one pass; those from index `first` on are scored, which is at least 1."""

    ids: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text; `error` is the standard error of `value`."""

    value: float
    error: float
    bits_per_byte: float


@dataclass(frozen=True)
class Divergence:
    """How far a model is from its reference, over the scored positions.

    `kl` is the mean of the KL divergences in nats and `kl_error` its standard error; `kl_median`,
    `kl_99` (99th percentile) and `kl_max` say how they are distributed. `probability_rms` is the
    root mean square of the difference in the probability of the text's token.
    """

    kl: float
    kl_error: float
    kl_median: float
    kl_99: float
    kl_max: float
    same_top: float
    probability_rms: float


@dataclass(frozen=True)
class EvalResult:
    """All of `hotloop eval`; `reference` and `divergence` are None without a reference."""

    model: str
    against: str | None
    tokens: int
    window: int
    stride: int
    bos: bool
    perplexity: Perplexity
    reference: Perplexity | None
    divergence: Divergence | None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def windows(ids: Sequence[int], window: int, stride: int, bos: int | None) -> Iterator[Window]:
    """Cut `ids` into windows of at most `window` tokens, BOS included, that score each token once.

    Without BOS nothing predicts the first token, and it is not scored.
    """
    head = () if bos is None else (bos,)
    length = window - len(head)
    scored = 1 - len(head)  # tokens of the text that are done with
    start = 0
    while scored < len(ids):
        inner = tuple(ids[start : start + length])
        yield Window(head + inner, len(head) + scored - start)
        scored = start + len(inner)
        start += stride


def evaluate(
    model: Model,
    text: str,
    stride: int | None = None,
    against: Model | None = None,
    against_name: str | None = None,
    limit: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> EvalResult:
    """Score `text`, at most its first `limit` tokens, in windows of the model's context.

    `stride` None is half a window. With `against`, the divergence from that model, too; both must
    cut the text into the same tokens. Raises `UsageError` and `ContextError` where text, window,
    stride and models do not fit together.
    """
    window = model.context if against is None else min(model.context, against.context)
    stride = max(1, window // 2) if stride is None else stride
    ids = _ids(model, text, limit)
    bos = model.tokenizer.bos_id if model.tokenizer and model.tokenizer.adds_bos else None
    if window < 2 or not 1 <= stride < window:
        raise ContextError(
            f"windows of {window} tokens that begin every {stride} tokens cannot be; "
            "the context must be at least 2, and the stride less."
        )
    if against is not None and (
        against.config.vocab != model.config.vocab or _ids(against, text, limit) != ids
    ):
        raise UsageError(
            f"{against.path} and {model.path} cut the text into other tokens; only models with one "
            "vocabulary can be compared token by token."
        )
    scores = _Scores()
    reference = None if against is None else _Scores()
    kl: list[float] = []
    same: list[bool] = []
    total = len(ids) - (bos is None)
    for each in windows(ids, window, stride, bos):
        rows = model.each_logits(each.ids[:-1], each.first - 1)
        theirs = against.each_logits(each.ids[:-1], each.first - 1) if against else None
        for token, row in zip(each.ids[each.first :], rows, strict=True):
            logprobs = log_softmax(row)
            scores.add(logprobs[token])
            if theirs is not None and reference is not None:
                expected = log_softmax(next(theirs))
                reference.add(expected[token])
                kl.append(float(np.exp(expected) @ (expected - logprobs)))
                same.append(bool(expected.argmax() == logprobs.argmax()))
            progress(scores.count, total, "evaluate")
    nbytes = len(model.detokenize(ids[bos is None :]).encode())
    return EvalResult(
        model=str(model.path),
        against=against_name,
        tokens=scores.count,
        window=window,
        stride=stride,
        bos=bos is not None,
        perplexity=scores.perplexity(nbytes),
        reference=None if reference is None else reference.perplexity(nbytes),
        divergence=None if reference is None else _divergence(scores, reference, kl, same),
    )


def _ids(model: Model, text: str, limit: int | None) -> list[int]:
    ids = model.tokenize(text, special=False)[:limit]
    if len(ids) < 2:
        raise UsageError(f"the text has {len(ids)} tokens; give one of at least 2.")
    return ids


def log_softmax(logits: NDArray[np.float32]) -> Floats:
    """ln p of every token, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    return shifted - log(np.exp(shifted).sum())


class _Scores:
    """ln p of the text's tokens."""

    def __init__(self) -> None:
        self.values: list[float] = []

    @property
    def count(self) -> int:
        return len(self.values)

    def add(self, logprob: float) -> None:
        self.values.append(float(logprob))

    def perplexity(self, nbytes: int) -> Perplexity:
        losses = -np.array(self.values)
        value = exp(losses.mean())
        return Perplexity(value, value * _error(losses), losses.sum() / log(2) / max(1, nbytes))


def _divergence(
    scores: _Scores, reference: _Scores, kl: list[float], same: list[bool]
) -> Divergence:
    values = np.array(kl)
    change = np.exp(scores.values) - np.exp(reference.values)
    return Divergence(
        kl=float(values.mean()),
        kl_error=_error(values),
        kl_median=float(np.median(values)),
        kl_99=float(np.quantile(values, 0.99)),
        kl_max=float(values.max()),
        same_top=float(np.mean(same)),
        probability_rms=sqrt(float(np.mean(change**2))),
    )


def _error(values: Floats) -> float:
    """The standard error of the mean; 0 where one value tells nothing of it."""
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
