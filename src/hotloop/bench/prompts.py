"""Prompts for measurements."""


def sample_ids(vocab: int, n: int) -> list[int]:
    """`n` token ids, the same every time; which ones makes no difference to a dense model."""
    return [(7 + 7919 * i) % vocab for i in range(n)]
