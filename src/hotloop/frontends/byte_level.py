"""Byte-level BPE, GPT-2's kind, from a vocabulary and merges, on the `tokenizers` library.

Bytes are written as printable characters (a space as Ġ), so that vocabulary and merges are plain
text. Text becomes words by a rule of `word_rules.py`; in each word pairs are joined by their place
in the list of merges (Sennrich et al., 2016, arXiv 1508.07909).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hotloop.frontends.word_rules import Rule

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer


def build(
    rule: Rule,
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    special: Iterable[str],
    added: Iterable[str],
) -> "Backend":
    """The library's tokenizer. Every part and result of `merges` must be one of `tokens`.

    `special` are control tokens, `added` the others that are found in text before it becomes
    words; both are among `tokens`.
    """
    from tokenizers import AddedToken, normalizers
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    vocabulary = {text: id for id, text in enumerate(tokens)}
    backend = Backend(BPE(vocabulary, list(merges), ignore_merges=rule.whole_words))
    backend.pre_tokenizer = word_cutter(rule)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    # All at once: each call makes the library rebuild its automaton.
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    return backend


def word_cutter(rule: Rule) -> "PreTokenizer":
    """The library's object that cuts text into words and spells them."""
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(word), behavior="isolated") for word in rule.words]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, spell])


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
