"""Tokens that are found in text before anything else is made of it: control tokens, added ones."""

import re
from collections.abc import Iterator, Mapping


class WholeTokens:
    """Finds whole tokens in text, by their ids: at each place the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        self._lengths = sorted({len(text) for text in ids}, reverse=True)
        first = "".join(map(re.escape, sorted({text[0] for text in ids})))
        self._starts = re.compile(f"[{first}]") if first else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The parts of `text` in order: a whole token and its id, or text between them and None."""
        begin = at = 0
        while self._starts is not None and (start := self._starts.search(text, at)):
            at = start.start()
            token = self._longest(text, at)
            if not token:
                at += 1
                continue
            if begin < at:
                yield text[begin:at], None
            yield token, self._ids[token]
            begin = at = at + len(token)
        if begin < len(text):
            yield text[begin:], None

    def _longest(self, text: str, at: int) -> str:
        candidates = (text[at : at + length] for length in self._lengths)
        return next((token for token in candidates if token in self._ids), "")
