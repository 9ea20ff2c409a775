"""Byte-level BPE, GPT-2's kind, from a vocabulary and a list of merges.

Bytes are written as printable characters (a space as Ġ), so that vocabulary and merges are plain
text. Text becomes words by a rule of `word_rules.py`, on the `tokenizers` library; in each word the
pair that comes first in the list of merges is joined, the leftmost of equals, until none is left.
(Sennrich et al., 2016, arXiv 1508.07909.)

The joining is ours because the library takes half a second to build its tables of a vocabulary of
128,000, where a dictionary takes a twentieth: a model should start sooner. Words repeat, so most
are found in a table of those seen before.
"""

import heapq
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hotloop.frontends.panics import no_words, panics_as
from hotloop.frontends.whole_tokens import WholeTokens
from hotloop.frontends.word_rules import Rule

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

SEEN_LIMIT = 1 << 16
"""Words whose ids are kept."""


class ByteLevelCodec:
    """A `Codec` from a vocabulary's texts (one per id), ids by text, and merges ("left right").

    `special` are control tokens, `added` the others that are found in text before it becomes
    words.
    """

    def __init__(
        self,
        rule: Rule,
        tokens: Sequence[str],
        ids: Mapping[str, int],
        merges: Sequence[str],
        special: Sequence[int],
        added: Sequence[int],
    ) -> None:
        self._tokens = tokens
        self._ids = ids
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))
        self._rule = rule
        self._words = word_cutter(rule)
        self._special = frozenset(special)
        self._whole = {tokens[id]: id for id in (*special, *added) if tokens[id]}
        self._found_always = WholeTokens({tokens[id]: id for id in added if tokens[id]})
        self._found_with_special = WholeTokens(self._whole)
        self._seen: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, special: bool) -> list[int]:
        finder = self._found_with_special if special else self._found_always
        ids: list[int] = []
        for part, id in finder.split(text):
            if id is not None:
                ids.append(id)
                continue
            if self._rule.nfc:
                part = unicodedata.normalize("NFC", part)
            with panics_as(no_words(part)):
                words = self._words.pre_tokenize_str(part)
            for word, _ in words:
                ids += self._seen.get(word) or self._word(word)
        return ids

    def piece(self, id: int) -> bytes:
        if id >= len(self._tokens):
            return b""
        text = self._tokens[id]
        return text.encode() if self._whole.get(text) == id else spelling(text)

    def whole_id(self, text: str) -> int | None:
        return self._whole.get(text)

    def is_special(self, id: int) -> bool:
        return id in self._special

    def _word(self, word: str) -> list[int]:
        """The ids of a word that was not seen before."""
        if self._rule.whole_words and word in self._ids:
            ids = [self._ids[word]]
        else:
            pieces = joined(word, self._ranks)
            # Vocabularies may lack characters for bytes that their makers never saw.
            ids = [self._ids[piece] for piece in pieces if piece in self._ids]
        if len(self._seen) >= SEEN_LIMIT:
            self._seen.clear()
        self._seen[word] = ids
        return ids


def word_cutter(rule: Rule) -> "PreTokenizer":
    """The library's object that cuts text into words and spells them."""
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(word), behavior="isolated") for word in rule.words]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, spell])


def joined(word: str, ranks: Mapping[str, int]) -> list[str]:
    """The characters of `word`, joined pair by pair, until no two neighbours are a merge.

    `ranks` has the place of each merge, "left right", in the list.
    """
    pieces: list[str] = list(word)  # "" once joined to the piece on its left
    before = list(range(-1, len(pieces) - 1))
    after = list(range(1, len(pieces) + 1))
    queue: list[tuple[int, int, int, str]] = []  # (rank, left, right, the pair)

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(pieces):
            pair = f"{pieces[left]} {pieces[right]}"
            rank = ranks.get(pair)
            if rank is not None:
                heapq.heappush(queue, (rank, left, right, pair))

    for left in range(len(pieces) - 1):
        offer(left, left + 1)
    while queue:
        _, left, right, pair = heapq.heappop(queue)
        # One of the two may have been joined to another since the offer was made.
        if after[left] != right or f"{pieces[left]} {pieces[right]}" != pair:
            continue
        pieces[left] += pieces[right]
        pieces[right] = ""
        after[left] = after[right]
        if after[right] < len(pieces):
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [piece for piece in pieces if piece]


def spelling(text: str) -> bytes:
    """The bytes that a token's characters stand for; UTF-8 where it is not in the alphabet."""
    try:
        return bytes([_BYTES[char] for char in text])
    except KeyError:
        return text.encode()


def _alphabet() -> dict[str, int]:
    """Each byte's character: itself where printable in Latin-1, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _alphabet()
