"""Byte-level BPE, GPT-2's kind: its alphabet, and how each family of models cuts text into words.

Bytes are written as printable characters (a space as Ġ), so that vocabulary and merges are plain
text. What nothing in a vocabulary tells is how text becomes words before merging; GGUF files name
that rule in `tokenizer.ggml.pre`. A name that is not in `RULES` is refused: a guess would give
slightly wrong ids, and no error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class Rule:
    """How text becomes words, as the `tokenizer.json` of the models that use the rule says it."""

    split: str | None = None
    """A word, as a regular expression; None for GPT-2's own."""
    digits_apart: bool = False
    nfc: bool = False
    """Whether text is brought to Unicode's composed form first."""
    whole_words: bool = False
    """Whether a word that is a token is taken as it is, whatever the merges say."""
    adds_bos: bool = False
    """Whether prompts start with BOS where the file doesn't say."""


def _words(number: str) -> str:
    """Llama 3's words; Qwen 2's differ only in how many digits make one."""
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = Rule()
_CODE = Rule(digits_apart=True)
_LLAMA3 = Rule(split=_words(r"\p{N}{1,3}"), whole_words=True, adds_bos=True)
_QWEN2 = Rule(split=_words(r"\p{N}"), nfc=True)

RULES: Mapping[str, Rule] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _CODE,
    "starcoder": _CODE,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}


def build(
    rule: Rule,
    tokens: Sequence[str],
    merges: Iterable[tuple[str, str]],
    special: Iterable[str],
    added: Iterable[str],
) -> "Backend":
    """The library's tokenizer. Every part and result of `merges` must be one of `tokens`.

    `special` are control tokens, `added` the others that are found in text before it becomes
    words; both are among `tokens`.
    """
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    vocabulary = {text: id for id, text in enumerate(tokens)}
    backend = Backend(BPE(vocabulary, list(merges), ignore_merges=rule.whole_words))
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.split is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    # All at once: each call makes the library rebuild its automaton.
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    return backend


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
