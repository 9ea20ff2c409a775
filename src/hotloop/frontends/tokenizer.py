"""From text to token ids and back, for whichever tokenizer a model file brings.

A `Codec` knows one vocabulary: that of `library_codec.py` leaves encoding to the `tokenizers`
library, that of `sentencepiece.py` is ours. Decoding is the same for all: every token has its
bytes, and text is the UTF-8 of their concatenation. `tokenizer_files.py` reads them from files.
"""

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hotloop.util.errors import UsageError

#: Texts of tokens that end a generation, in whichever model they occur: files often name only one
#: of theirs as `eos`, and chat models end their turns with another.
END_TEXTS = frozenset(
    {
        "<|im_end|>",  # ChatML: SmolLM, Qwen
        "<|endoftext|>",  # GPT-2 and descendants
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",
        "<|eot|>",  # Llama 4
        "<|eom|>",
        "<|end_of_text|>",  # Llama 3, Granite
        "</s>",  # Llama 2, Mistral
        "<end_of_turn>",  # Gemma
        "<eos>",
        "<|end|>",  # Phi-3
        "<|return|>",  # gpt-oss: the end of an answer …
        "<|call|>",  # … and of the request for a tool
        "<|END_OF_TURN_TOKEN|>",  # Command R
        "[|endofturn|]",  # EXAONE
        "<｜end▁of▁sentence｜>",  # DeepSeek
        "<EOT>",
        "[EOT]",
    }
)
#: What stands before a prefix, a suffix, and the middle to fill in, in this order.
_INFILL_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
#: In gpt-oss `<|end|>` ends a message, after which the same reply goes on.
_NO_ENDS = {"<|return|>": "<|end|>"}


class Codec(Protocol):
    """One vocabulary: how text becomes ids, and which bytes an id stands for."""

    @property
    def size(self) -> int:
        """How many ids there are, special ones included."""

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of `text`; special tokens written in it are recognised iff `special`."""

    def piece(self, id: int) -> bytes:
        """The bytes of token `id`; none where the vocabulary leaves the id unused."""

    def whole_id(self, text: str) -> int | None:
        """The id of the token `text` where it is one that is found whole: control or added."""

    def is_special(self, id: int) -> bool:
        """Whether `id` is a control token, which stands for no text of its own."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary together with what the model file says of its use."""

    codec: Codec
    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    """Every id that ends a generation, sorted: end of text, of turn, of message."""
    adds_bos: bool = False
    """Whether a prompt begins with `bos_id`; `encode` leaves that to the caller."""
    adds_eos: bool = False
    """Whether a text that is embedded ends with `eos_id`; a prompt, which goes on, does not."""
    prefix_space: bool = False
    """Whether encoding puts a space before the text, which `decode` takes away again."""
    chat_template: str | None = None
    tool_template: str | None = None
    """The chat template for conversations with tools, where the model has one of its own."""
    _texts: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    """What `TextStream` keeps, without and with the text of control tokens."""

    @property
    def vocab_size(self) -> int:
        return self.codec.size

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`, without BOS.

        Special tokens written in the text, such as `<|im_end|>`, become their ids iff `special`:
        pass False for text that somebody else wrote. Raises `UsageError` for text with lone
        surrogates, which is what bytes that are not UTF-8 become on a command line.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text is not valid Unicode at character {error.start}; give it as UTF-8."
            ) from None
        return self.codec.encode(text, special)

    def decode(self, ids: Iterable[int], special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Special tokens appear as their text iff `special`; padding ids stand for nothing.
        """
        text = b"".join([self._piece(id, special) for id in ids]).decode(errors="replace")
        return text.removeprefix(" ") if self.prefix_space else text

    def stream(self, special: bool = True) -> "TextStream":
        """A decoder that takes ids one by one; no leading space is taken away."""
        return TextStream(partial(self._piece, special=special), self._texts[special])

    def token_text(self, id: int) -> str:
        """The text of the one token `id`; U+FFFD for a part of a character."""
        return self._piece(id, special=True).decode(errors="replace")

    def _piece(self, id: int, special: bool) -> bytes:
        if not 0 <= id < 2**31:
            raise UsageError(f"{id} is no token id; give one from 0 to {self.vocab_size - 1}.")
        return b"" if not special and self.codec.is_special(id) else self.codec.piece(id)


class TextStream:
    """Text as its tokens arrive; a character is held back until its last byte is there.

    `texts` keeps the texts of tokens that are whole characters, so that between two tokens of a
    launch nobody need spell them again.
    """

    def __init__(self, piece: Callable[[int], bytes], texts: dict[int, str]) -> None:
        self._piece = piece
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._whole = True  # whether no character is incomplete

    def push(self, id: int) -> str:
        """The text that token `id` completes, which may be none."""
        if self._whole and (known := self._texts.get(id)) is not None:
            return known
        began_whole = self._whole
        text = self._decoder.decode(self._piece(id))
        self._whole = not self._decoder.getstate()[0]
        if began_whole and self._whole:
            self._texts[id] = text
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD where a character stayed incomplete."""
        return self._decoder.decode(b"", final=True)


def stop_ids(codec: Codec, named: Iterable[int | None]) -> tuple[int, ...]:
    """The ids that the file names as ends, and those of `END_TEXTS` that the vocabulary has."""
    not_ends = {other for sign, other in _NO_ENDS.items() if codec.whole_id(sign) is not None}
    found = {*named, *(_end_id(codec, text) for text in END_TEXTS - not_ends)}
    return tuple(sorted(id for id in found if id is not None))


def infill_ids(codec: Codec) -> tuple[int, int, int] | None:
    """The ids before a prefix, before a suffix, and before the middle that a model fills in.

    None where the vocabulary has no such tokens.
    """
    for texts in _INFILL_TEXTS:
        before, after, middle = map(codec.whole_id, texts)
        if before is not None and after is not None and middle is not None:
            return before, after, middle
    return None


def _end_id(codec: Codec, text: str) -> int | None:
    """Files may forget to mark `<|im_end|>` as control; `</s>` then is HTML, as in Gemma's."""
    id = codec.whole_id(text)
    return id if id is not None and ("|" in text or codec.is_special(id)) else None
