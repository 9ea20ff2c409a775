"""Prompts for measurements."""

from hotloop.api import Model
from hotloop.util.errors import UsageError

#: Where measured decoding begins.
POSITION = 16


def sample_ids(vocab: int, n: int) -> list[int]:
    """`n` token ids, the same every time; which ones makes no difference to a dense model."""
    return [(7 + 7919 * i) % vocab for i in range(n)]


def short_prompt(model: Model, tokens: int) -> list[int]:
    """The ids of a prompt of `POSITION` tokens, which `tokens` more are to follow.

    Raises `UsageError` where the context is too short for them.
    """
    if POSITION + tokens > model.context:
        raise UsageError(
            f"{tokens} tokens from position {POSITION} on need a context of {POSITION + tokens}, "
            f"and this one holds {model.context}; use -c/--context."
        )
    return sample_ids(model.config.vocab, POSITION)
