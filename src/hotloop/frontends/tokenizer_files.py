"""The tokenizer that a model file brings: in GGUF's metadata, or in a Hugging Face folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from hotloop.frontends import byte_level
from hotloop.frontends.hf_folder import read_json
from hotloop.frontends.library_codec import LibraryCodec, codec_from_json
from hotloop.frontends.model_file import ModelFile, map_file
from hotloop.frontends.sentencepiece import SPECIAL_TYPES, SentencePieceCodec, TokenType
from hotloop.frontends.tokenizer import Codec, Tokenizer, stop_ids
from hotloop.util.errors import ModelFileError, UnsupportedError

T = TypeVar("T")

_NO_TOKENIZER = ("none", "no_vocab")


def load_tokenizer(file: ModelFile) -> Tokenizer | None:
    """The tokenizer of `file`, or None where it brings none: such a model takes ids only.

    Raises `UnsupportedError` for a kind of tokenizer that hotloop doesn't know to the letter, and
    `ModelFileError` for a damaged one.
    """
    if "general.architecture" not in file.metadata:
        return _from_folder(file)
    kind = file.optional("tokenizer.ggml.model", str, "none")
    if kind in _NO_TOKENIZER:
        return None
    if kind not in _GGUF_KINDS:
        raise UnsupportedError(
            f"{file.path} has a tokenizer of kind {kind!r:.80}; hotloop knows "
            f"{', '.join(_GGUF_KINDS)} (byte-level BPE and SentencePiece's BPE)."
        )
    return _GGUF_KINDS[kind](file)


def _byte_level(file: ModelFile) -> Tokenizer:
    pre = file.optional("tokenizer.ggml.pre", str, "")
    rule = byte_level.RULES.get(pre)
    if rule is None:
        raise UnsupportedError(
            f"{file.path} cuts text into words by the rule {pre!r:.80} (tokenizer.ggml.pre); "
            f"hotloop knows {', '.join(byte_level.RULES)}, and doesn't guess."
        )
    tokens, types = _vocabulary(file)
    parts = (merge.partition(" ") for merge in _list(file, "tokenizer.ggml.merges", str))
    merges = [(left, right) for left, _, right in parts]
    known = set(tokens)
    for left, right in merges:
        if not (left in known and right in known and left + right in known):
            raise _damaged(file, f"the merge of {left!r:.40} and {right!r:.40} is not of tokens")
    by_type = list(zip(types, tokens, strict=True))
    special = [text for type, text in by_type if text and type in SPECIAL_TYPES]
    added = [text for type, text in by_type if text and type == TokenType.USER_DEFINED]
    backend = byte_level.build(rule, tokens, merges, special, added)
    return _with_ids(file, LibraryCodec(backend, byte_level.spelling), rule.adds_bos)


def _sentencepiece(file: ModelFile) -> Tokenizer:
    tokens, types = _vocabulary(file)
    scores = _list(file, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise _damaged(file, f"its tokenizer has {len(tokens)} tokens and {len(scores)} scores")
    prefix = file.optional("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = _id(file, "tokenizer.ggml.unknown_token_id", len(tokens))
    codec = SentencePieceCodec(tokens, scores, types, unknown, prefix)
    return _with_ids(file, codec, adds_bos=True, prefix_space=prefix)


_GGUF_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _vocabulary(file: ModelFile) -> tuple[list[str], list[int]]:
    """Tokens and their types, one each per id; types are all NORMAL where the file has none."""
    tokens = _list(file, "tokenizer.ggml.tokens", str)
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(text for text in tokens if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise _damaged(file, f"its tokenizer has token {twice!r:.80} twice")
    if file.metadata.get("tokenizer.ggml.token_type") is None:
        return tokens, [int(TokenType.NORMAL)] * len(tokens)
    types = _list(file, "tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise _damaged(file, f"its tokenizer has {len(tokens)} tokens and {len(types)} types")
    return tokens, types


def _with_ids(
    file: ModelFile, codec: Codec, adds_bos: bool, prefix_space: bool = False
) -> Tokenizer:
    def named(name: str) -> int | None:
        return _id(file, f"tokenizer.ggml.{name}_token_id", codec.size)

    bos, eos = named("bos"), named("eos")
    adds_bos = file.optional("tokenizer.ggml.add_bos_token", bool, adds_bos)
    return Tokenizer(
        codec,
        bos_id=bos,
        eos_id=eos,
        stop_ids=stop_ids(codec, [eos, named("eot"), named("eom")]),
        adds_bos=adds_bos and bos is not None,
        prefix_space=prefix_space,
        chat_template=file.optional("tokenizer.chat_template", str, None),
    )


def _id(file: ModelFile, key: str, size: int) -> int | None:
    id = file.optional(key, int, None)
    if id is not None and not 0 <= id < size:
        raise _damaged(file, f"{key} is {id}, and its tokenizer has {size} tokens")
    return id


def _list(file: ModelFile, key: str, kind: type[T]) -> list[T]:
    values = file.require(key, list)
    if not values or not isinstance(values[0], kind):  # All elements of a GGUF array are alike.
        raise _damaged(file, f"{key} is not a list of {kind.__name__}")
    return cast(list[T], values)


def _damaged(file: ModelFile, found: str) -> ModelFileError:
    return ModelFileError(f"{file.path} is damaged: {found}; download or convert it again.")


# Hugging Face folders.


def _from_folder(file: ModelFile) -> Tokenizer | None:
    path = file.path / "tokenizer.json"
    if not path.exists():
        return None
    codec, backend = codec_from_json(bytes(map_file(path)), str(path))
    config = _optional_json(file.path / "tokenizer_config.json")
    ends = [
        *_ids(file.metadata.get("eos_token_id"), codec.size),
        *_ids(_optional_json(file.path / "generation_config.json").get("eos_token_id"), codec.size),
    ]
    bos = next(iter(_ids(file.metadata.get("bos_token_id"), codec.size)), None)
    return Tokenizer(
        codec,
        bos_id=bos,
        eos_id=ends[0] if ends else None,
        stop_ids=stop_ids(codec, ends),
        # What the file's own post-processing puts before a text says whether prompts have BOS.
        adds_bos=bos is not None and backend.encode("a").ids[:1] == [bos],
        prefix_space="Strip(" in repr(backend.decoder),
        chat_template=_folder_template(file.path, config),
    )


def _optional_json(path: Path) -> dict[str, object]:
    return read_json(path) if path.exists() else {}


def _ids(value: object, size: int) -> list[int]:
    """`config.json` gives an id, a list of them, or null."""
    values: Iterable[object] = value if isinstance(value, Sequence) else [value]
    return [id for id in values if type(id) is int and 0 <= id < size]


def _folder_template(folder: Path, config: dict[str, object]) -> str | None:
    """`chat_template.jinja`, else what `tokenizer_config.json` holds: a text, or several named."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return bytes(map_file(path)).decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{path} is not valid UTF-8; download it again.") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next(
            (one.get("template") for one in named if one.get("name") == "default"), None
        )
    return template if isinstance(template, str) else None
