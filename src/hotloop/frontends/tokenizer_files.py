"""The tokenizer that a model file brings: in GGUF's metadata, or in a Hugging Face folder."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from hotloop.frontends import byte_level
from hotloop.frontends.hf_folder import parse_json
from hotloop.frontends.library_codec import LibraryCodec, codec_from_json, gave_up
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.panics import panics_as
from hotloop.frontends.sentencepiece import SPECIAL_TYPES, SentencePieceCodec, TokenType
from hotloop.frontends.tokenizer import Codec, Tokenizer, stop_ids
from hotloop.frontends.word_rules import RULES
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
    rule = RULES.get(pre)
    if rule is None:
        raise UnsupportedError(
            f"{file.path} cuts text into words by the rule {pre!r:.80} (tokenizer.ggml.pre); "
            f"hotloop knows {', '.join(RULES)}, and doesn't guess."
        )
    tokens, types = _vocabulary(file)
    merges = _merges(file, set(tokens))
    by_type = list(zip(types, tokens, strict=True))
    special = [text for type, text in by_type if text and type in SPECIAL_TYPES]
    added = [text for type, text in by_type if text and type == TokenType.USER_DEFINED]
    codec = LibraryCodec(
        byte_level.build(rule, tokens, merges, special, added), byte_level.spelling
    )
    return _with_ids(file, codec, rule.adds_bos)


def _merges(file: ModelFile, tokens: set[str]) -> list[tuple[str, str]]:
    """The pairs to join; the library panics where one is not of tokens, or makes none."""
    parts = (merge.partition(" ") for merge in _list(file, "tokenizer.ggml.merges", str))
    merges = [(left, right) for left, _, right in parts]
    for left, right in merges:
        if not (left in tokens and right in tokens and left + right in tokens):
            raise _damaged(file, f"the merge of {left!r:.40} and {right!r:.40} is not of tokens")
    return merges


def _sentencepiece(file: ModelFile) -> Tokenizer:
    tokens, types = _vocabulary(file)
    scores = _list(file, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise _damaged(file, f"its tokenizer has {len(tokens)} tokens and {len(scores)} scores")
    prefix = file.optional("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = _id(file, "tokenizer.ggml.unknown_token_id", len(tokens))
    codec = SentencePieceCodec(tokens, scores, types, unknown, prefix, _eating(file, tokens, types))
    return _with_ids(file, codec, adds_bos=True, prefix_space=prefix)


def _eating(file: ModelFile, tokens: list[str], types: list[int]) -> set[int]:
    """Tokens after which white space goes away: in Phi-3, as its `tokenizer.json` has it, those
    that were added to Llama 2's; GGUF has no place to say so."""
    if file.architecture != "phi3":
        return set()
    added = (TokenType.CONTROL, TokenType.USER_DEFINED)
    keep = ("<unk>", "<s>", "<|endoftext|>")
    return {id for id, type in enumerate(types) if type in added and tokens[id] not in keep}


_GGUF_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _vocabulary(file: ModelFile) -> tuple[list[str], list[int]]:
    """Tokens and their types, one each per id; types are all NORMAL where the file has none."""
    tokens = _list(file, "tokenizer.ggml.tokens", str)
    if len(set(tokens)) != len(tokens):
        ((twice, _),) = Counter(tokens).most_common(1)
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
        adds_eos=file.optional("tokenizer.ggml.add_eos_token", bool, False) and eos is not None,
        prefix_space=prefix_space,
        chat_template=file.optional("tokenizer.chat_template", str, None),
        tool_template=file.optional("tokenizer.chat_template.tool_use", str, None),
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
    texts = file.texts()
    if "tokenizer.json" not in texts:
        return None
    source = str(file.path / "tokenizer.json")
    codec, backend = codec_from_json(texts["tokenizer.json"], source)

    def settings(name: str) -> dict[str, object]:
        return parse_json(file.path / name, texts[name]) if name in texts else {}

    config, generation = settings("tokenizer_config.json"), settings("generation_config.json")
    templates = _folder_templates(file.path, texts, config)
    ends = [
        *_ids(file.metadata.get("eos_token_id"), codec.size),
        *_ids(generation.get("eos_token_id"), codec.size),
        *_named_ids(config.get("eos_token"), codec),
    ]
    starts = [
        *_ids(file.metadata.get("bos_token_id"), codec.size),
        *_named_ids(config.get("bos_token"), codec),
    ]
    bos = starts[0] if starts else None
    with panics_as(gave_up(source)):  # a template of tokens that it does not name
        processed = backend.encode("a").ids
    adds_bos = config.get("add_bos_token")
    if not isinstance(adds_bos, bool):
        # What the file's own post-processing puts before a text says whether prompts have BOS.
        adds_bos = processed[:1] == [bos]
    return Tokenizer(
        codec,
        bos_id=bos,
        eos_id=ends[0] if ends else None,
        stop_ids=stop_ids(codec, ends),
        adds_bos=adds_bos and bos is not None,
        adds_eos=processed[-1:] == ends[:1],
        prefix_space="Strip(" in repr(backend.decoder),
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
    )


def _named_ids(token: object, codec: Codec) -> list[int]:
    """`tokenizer_config.json` gives a token's text, or an object with it, or null."""
    text = token.get("content") if isinstance(token, dict) else token
    id = codec.whole_id(text) if isinstance(text, str) else None
    return [] if id is None else [id]


def _ids(value: object, size: int) -> list[int]:
    """`config.json` gives an id, a list of them, or null."""
    values: Iterable[object] = value if isinstance(value, Sequence) else [value]
    return [id for id in values if type(id) is int and 0 <= id < size]


def _folder_templates(
    folder: Path, texts: Mapping[str, bytes], config: dict[str, object]
) -> dict[str, str]:
    """Templates by name: `tokenizer_config.json` holds one or several, files go before it."""
    templates: dict[str, object] = {}
    given = config.get("chat_template")
    if isinstance(given, list):
        named = [item for item in given if isinstance(item, dict)]
        templates = {str(item.get("name")): item.get("template") for item in named}
    elif isinstance(given, dict):
        templates = {str(name): template for name, template in given.items()}
    else:
        templates = {"default": given}
    for name, path in _TEMPLATE_FILES.items():
        if path in texts:
            try:
                templates[name] = texts[path].decode()
            except UnicodeDecodeError:
                raise ModelFileError(
                    f"{folder / path} is not valid UTF-8; download it again."
                ) from None
    return {name: text for name, text in templates.items() if isinstance(text, str)}


_TEMPLATE_FILES = {
    "default": "chat_template.jinja",
    "tool_use": "additional_chat_templates/tool_use.jinja",
}
