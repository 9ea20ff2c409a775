"""SentencePiece's BPE, which GGUF calls `llama`: a vocabulary with scores and no list of merges.

Text starts as single characters, spaces written as ▁. As long as two neighbours together are in
the vocabulary, the pair with the highest score is joined, the leftmost of equals; characters that
are no token at the end become byte tokens such as <0xE2>. (SentencePiece, `bpe_model.cc`.)

Ours rather than the `tokenizers` library's because that one wants a list of merges: deriving one
from the scores takes a second or more for a large vocabulary, and cannot say "the leftmost of
equals" where one token has several splits.
"""

import heapq
import re
from collections.abc import Container, Mapping, Sequence
from enum import IntEnum

from hotloop.frontends.whole_tokens import WholeTokens


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` (`llama_token_type` in llama.h)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL)
"""Tokens that stand for no text of their own."""
_NEVER_JOINED = (*SPECIAL_TYPES, TokenType.BYTE)


class SentencePieceCodec:
    """A `Codec` from a vocabulary's texts, scores and types, one of each per id."""

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        types: Sequence[int],
        unknown: int | None,
        prefix_space: bool,
        eats_spaces: Container[int] = (),
    ) -> None:
        """`eats_spaces` are tokens that take the white space after them away."""
        self._tokens = tokens
        self._types = types
        self._unknown = [] if unknown is None else [unknown]
        self._prefix = "▁" if prefix_space else ""
        self._eats_spaces = eats_spaces
        self._ids: dict[str, int] = {}
        self._scores: dict[str, float] = {}
        self._byte_ids: dict[int, int] = {}
        whole: dict[str, int] = {}
        for id, (text, score, type) in enumerate(zip(tokens, scores, types, strict=True)):
            if type not in _NEVER_JOINED:
                self._ids[text] = id
                self._scores[text] = score
            elif type == TokenType.BYTE and _BYTE_TOKEN.fullmatch(text):
                self._byte_ids[spelling(text)[0]] = id
            if text and (type == TokenType.USER_DEFINED or type in SPECIAL_TYPES):
                whole[text] = id
        self._whole_ids = whole
        self._found_always = WholeTokens(
            {text: id for text, id in whole.items() if not self.is_special(id)}
        )
        self._found_with_special = WholeTokens(whole)

    @property
    def size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, special: bool) -> list[int]:
        finder = self._found_with_special if special else self._found_always
        ids: list[int] = []
        prefix = self._prefix
        for part, id in finder.split(text):
            if id is None:
                plain = part.lstrip() if ids and ids[-1] in self._eats_spaces else part
                ids += self._encode_plain(prefix + plain.replace(" ", "▁")) if plain else []
                prefix = ""
            else:
                ids.append(id)
                prefix = self._prefix  # The text after a special token counts as a beginning.
        return ids

    def piece(self, id: int) -> bytes:
        if id >= len(self._tokens):
            return b""
        text = self._tokens[id]
        return text.encode() if self.is_special(id) else spelling(text)

    def whole_id(self, text: str) -> int | None:
        return self._whole_ids.get(text)

    def is_special(self, id: int) -> bool:
        return id < len(self._types) and self._types[id] in SPECIAL_TYPES

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _joined(text, self._scores):
            if piece in self._ids:
                ids.append(self._ids[piece])
            elif all(byte in self._byte_ids for byte in piece.encode()):
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            else:
                ids += self._unknown
        return ids


def spelling(text: str) -> bytes:
    """The bytes of a token: those of its text with ▁ for a space, or the one it names (<0x0A>)."""
    if _BYTE_TOKEN.fullmatch(text):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()


_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


def _joined(text: str, scores: Mapping[str, float]) -> list[str]:
    """The characters of `text`, joined pair by pair until no two neighbours are a token."""
    pieces: list[str] = list(text)  # "" once joined to the piece on its left
    before = list(range(-1, len(pieces) - 1))
    after = list(range(1, len(pieces) + 1))
    queue: list[tuple[float, int, int, str]] = []  # (-score, left, right, the two together)

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(pieces):
            both = pieces[left] + pieces[right]
            if both in scores:
                heapq.heappush(queue, (-scores[both], left, right, both))

    for left in range(len(pieces) - 1):
        offer(left, left + 1)
    while queue:
        _, left, right, both = heapq.heappop(queue)
        # One of the two may have been joined to another since the offer was made.
        if after[left] != right or pieces[left] + pieces[right] != both or not pieces[left]:
            continue
        pieces[left], pieces[right] = both, ""
        after[left] = after[right]
        if after[right] < len(pieces):
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [piece for piece in pieces if piece]
