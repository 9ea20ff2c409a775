"""Vocabularies on the `tokenizers` library, which encodes; the bytes of each token are ours."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hotloop.frontends import byte_level, sentencepiece
from hotloop.frontends.panics import no_words, panics_as
from hotloop.util.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Spelling = Callable[[str], bytes]
"""From a token's text in the vocabulary to the bytes that it stands for."""


class LibraryCodec:
    """A `Codec` around a `tokenizers.Tokenizer`."""

    def __init__(self, backend: "Backend", spelling: Spelling) -> None:
        self._backend = backend
        self._spelling = spelling
        self._lock = threading.Lock()
        self._added = backend.get_added_tokens_decoder()

    @property
    def size(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, text: str, special: bool) -> list[int]:
        with self._lock:  # The library takes this choice as a property of the whole tokenizer.
            self._backend.encode_special_tokens = not special
            with panics_as(no_words(text)):
                return self._backend.encode(text, add_special_tokens=False).ids

    def piece(self, id: int) -> bytes:
        if id in self._added:
            return self._added[id].content.encode()
        return self._spelling(self._backend.id_to_token(id) or "")

    def whole_id(self, text: str) -> int | None:
        id = self._backend.token_to_id(text)
        return id if id in self._added else None

    def is_special(self, id: int) -> bool:
        return id in self._added and self._added[id].special


def gave_up(source: str) -> ModelFileError:
    """The error for a `tokenizer.json` at which the library panics."""
    return ModelFileError(
        f"{source} is damaged (the tokenizers library gave up on it); download it again."
    )


def codec_from_json(content: bytes, source: str) -> tuple[LibraryCodec, "Backend"]:
    """The codec of a `tokenizer.json`, and the library's own object for its other settings.

    Raises `ModelFileError`, naming `source`, where the library cannot read it, and
    `UnsupportedError` where its decoder is neither byte-level nor SentencePiece's.
    """
    from tokenizers import Tokenizer as Backend

    try:
        with panics_as(gave_up(source)):
            backend = Backend.from_buffer(content)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{source} is damaged ({reason:.200}); download it again.") from None
    decoder = repr(backend.decoder)
    if "ByteLevel" in decoder:
        return LibraryCodec(backend, byte_level.spelling), backend
    if "ByteFallback" in decoder or "Metaspace" in decoder:
        return LibraryCodec(backend, sentencepiece.spelling), backend
    raise UnsupportedError(
        f"{source} decodes with {decoder:.80}; hotloop knows byte-level and SentencePiece decoders."
    )
