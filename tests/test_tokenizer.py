"""Tokenizers: llama.cpp's ids on the default model, and small ones made by hand."""

import json
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from hotloop.frontends import byte_level
from hotloop.frontends.gguf import read_gguf, read_header
from hotloop.frontends.hf_folder import read_texts
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.sentencepiece import SentencePieceCodec, TokenType
from hotloop.frontends.tokenizer import Tokenizer
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.frontends.word_rules import RULES
from hotloop.util.errors import ModelFileError, UnsupportedError, UsageError

REFERENCE = json.loads(
    (Path(__file__).parent / "data" / "smollm2-135m-q4_1.json").read_text(encoding="utf-8")
)
TEXTS = REFERENCE["tokenizer"]


@pytest.fixture(scope="module")
def smollm(default_model: Path) -> Tokenizer:
    return loaded(read_gguf(default_model))


@pytest.mark.parametrize("case", TEXTS, ids=[repr(case["text"][:20]) for case in TEXTS])
def test_reference_ids(smollm: Tokenizer, case: Mapping[str, object]) -> None:
    text = str(case["text"])
    assert smollm.encode(text) == case["ids"]
    assert smollm.encode(text, special=False) == case["ids_plain"]
    assert smollm.decode(smollm.encode(text)) == text
    assert smollm.decode(smollm.encode(text, special=False)) == text
    assert streamed(smollm, smollm.encode(text)) == text


def test_reference_prompts(smollm: Tokenizer) -> None:
    for case in REFERENCE["cases"]:
        assert smollm.encode(case["prompt"]) == case["prompt_ids"]
        text = smollm.decode(case["greedy_ids"])
        assert streamed(smollm, case["greedy_ids"]) == text


def test_what_the_file_says(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert (smollm.bos_id, smollm.eos_id, smollm.adds_bos) == (1, 2, False)
    assert smollm.stop_ids == (0, 2)  # <|endoftext|>, <|im_end|>
    assert smollm.token_text(2) == "<|im_end|>"
    assert smollm.token_text(504) == "The"
    assert smollm.chat_template is not None
    assert "<|im_start|>" in smollm.chat_template


def test_special_tokens_may_be_left_out(smollm: Tokenizer) -> None:
    ids = smollm.encode("<|im_start|>user\nhi<|im_end|>")
    assert smollm.decode(ids, special=False) == "user\nhi"
    stream = smollm.stream(special=False)
    assert "".join(map(stream.push, ids)) == "user\nhi"


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    stream = tokenizer.stream()
    return "".join(map(stream.push, ids)) + stream.flush()


@settings(max_examples=100)
@given(text=st.text(max_size=60))
def test_every_text_comes_back(smollm: Tokenizer, text: str) -> None:
    known = {smollm.codec.piece(id) for id in range(400)}
    kept = bytes(byte for byte in text.encode() if bytes([byte]) in known)
    expected = kept.decode(errors="replace")  # Its makers left some control bytes out.
    for special in (True, False):
        ids = smollm.encode(text, special=special)
        assert smollm.decode(ids) == expected
        assert streamed(smollm, ids) == expected


@settings(max_examples=100)
@given(ids=st.lists(st.integers(0, 49151), max_size=40))
def test_any_ids_stream_as_they_decode(smollm: Tokenizer, ids: list[int]) -> None:
    assert streamed(smollm, ids) == smollm.decode(ids)


def test_a_character_in_parts_is_held_back(smollm: Tokenizer) -> None:
    ids = smollm.encode("🏽")  # Two tokens or more, none of them a character.
    assert len(ids) > 1
    stream = smollm.stream()
    assert [stream.push(id) for id in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.push(ids[-1]) == "🏽"
    assert stream.flush() == ""
    stream = smollm.stream()
    assert stream.push(ids[0]) + stream.push(smollm.encode("a")[0]) == "�a"
    stream.push(ids[0])
    assert stream.flush() == "�"
    assert stream.flush() == ""


def test_ids_out_of_range(smollm: Tokenizer) -> None:
    assert smollm.decode([49152, 10**6]) == ""  # Rows that pad the embedding name no token.
    for id in (-1, 2**31, 2**70):
        with pytest.raises(UsageError, match=f"{id} is no token id; give one from 0 to 49151"):
            smollm.decode([id])
        with pytest.raises(UsageError):
            smollm.stream().push(id)


def test_text_that_is_not_unicode(smollm: Tokenizer) -> None:
    with pytest.raises(UsageError, match="not valid Unicode at character 2; give it as UTF-8"):
        smollm.encode("ab\udcff")


def test_threads_do_not_mix_their_choices(smollm: Tokenizer) -> None:
    case = next(case for case in TEXTS if case["ids"] != case["ids_plain"])
    wrong: list[list[int]] = []

    def work(special: bool) -> None:
        expected = case["ids"] if special else case["ids_plain"]
        for _ in range(300):
            if (ids := smollm.encode(case["text"], special)) != expected:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(special,)) for special in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Gemma 3: SentencePiece, 262,144 tokens, many of them user-defined.

GEMMA = json.loads(
    (Path(__file__).parent / "data" / "gemma3-270m-q4_k_m.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def gemma(gemma_file: Path) -> Tokenizer:
    header = read_header(gemma_file)  # so that its formats of weights do not matter
    return loaded(ModelFile(gemma_file, "gemma3", header.metadata, {}))


def test_gemma_reference_ids(gemma: Tokenizer) -> None:
    for case in GEMMA["tokenizer"]:
        text = case["text"]
        assert gemma.encode(text) == case["ids"]
        assert gemma.encode(text, special=False) == case["ids_plain"]
        assert gemma.decode(case["ids"]) == streamed(gemma, case["ids"]) == text
    for case in GEMMA["cases"]:
        assert [gemma.bos_id, *gemma.encode(case["prompt"])] == case["prompt_ids"]


def test_what_the_gemma_file_says(gemma: Tokenizer) -> None:
    assert (gemma.bos_id, gemma.eos_id, gemma.adds_bos) == (2, 1, True)
    assert [gemma.token_text(id) for id in gemma.stop_ids] == ["<eos>", "<end_of_turn>"]


# Small vocabularies in GGUF's terms.


def model(**fields: object) -> ModelFile:
    metadata: dict[str, object] = {"general.architecture": "llama"}
    for name, value in fields.items():
        metadata[
            "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        ] = value
    return ModelFile(Path("small.gguf"), "llama", metadata, {})


ALPHABET = [char for char, byte in sorted(byte_level._BYTES.items(), key=lambda item: item[1])]


def byte_level_model(pre: str = "gpt-2", **fields: object) -> ModelFile:
    """All bytes (id = byte), three merges, two control tokens and one user-defined."""
    given: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*ALPHABET, "Ġt", "he", "Ġthe", "<|im_end|>", "<s>", "<tool>"],
        "token_type": [1] * 259 + [3, 3, 4],
        "merges": ["Ġ t", "h e", "Ġt he"],
        "bos_token_id": 260,
        "eos_token_id": 260,
    }
    return model(**{**given, **fields})


def loaded(file: ModelFile) -> Tokenizer:
    tokenizer = load_tokenizer(file)
    assert tokenizer is not None
    return tokenizer


def test_byte_level_by_hand() -> None:
    tokenizer = loaded(byte_level_model())
    assert tokenizer.encode("the the") == [ord("t"), 257, 258]
    assert tokenizer.encode("<s><tool>x<|im_end|>") == [260, 261, ord("x"), 259]
    # Tokens that a user defined are found always, control tokens only where asked for.
    assert tokenizer.encode("<s><tool>", special=False) == [*b"<s>", 261]
    assert tokenizer.stop_ids == (259, 260)
    assert tokenizer.decode([261, 259, 258], special=False) == "<tool> the"
    for byte in range(256):
        assert tokenizer.codec.piece(byte) == bytes([byte])


WORDS = {
    "gpt-2": ("I'm IT'S 1234!!\n\n x", ["I", "'m", " IT", "'", "S", " 1234", "!!", "\n\n", " x"]),
    "smollm": ("IT'S 123 x", ["IT", "'", "S", " ", "1", "2", "3", " x"]),
    "llama-bpe": (
        "I'm IT'S 12345 .x!!\n\n  y",
        ["I", "'m", " IT", "'S", " ", "123", "45", " .", "x", "!!\n\n", " ", " y"],
    ),
    "qwen2": ("IT'S 123\r\n y", ["IT", "'S", " ", "1", "2", "3", "\r\n", " y"]),
}


@pytest.mark.parametrize("pre", WORDS)
def test_words(pre: str) -> None:
    """How text is cut into words, by what each rule's `tokenizer.json` says."""
    text, words = WORDS[pre]
    cut = byte_level.word_cutter(RULES[pre]).pre_tokenize_str(text)
    found = [byte_level.spelling(word) for word, _ in cut]
    assert [word.decode() for word in found] == words


def test_qwen_composes_and_others_do_not() -> None:
    decomposed = "e\N{COMBINING ACUTE ACCENT}"
    assert loaded(byte_level_model("qwen2")).encode(decomposed) == list("é".encode())
    assert loaded(byte_level_model("smollm")).encode(decomposed) == list(decomposed.encode())


def test_llama3_takes_whole_words_and_adds_bos() -> None:
    fields = {
        "tokens": [*ALPHABET, "ca", "cat", "<s>"],
        "token_type": [1] * 258 + [3],
        "merges": ["c a"],
        "bos_token_id": 258,
        "eos_token_id": 258,
    }
    llama = loaded(byte_level_model("llama-bpe", **fields))
    assert llama.encode("cat") == [257]
    assert llama.adds_bos
    assert loaded(byte_level_model("gpt-2", **fields)).encode("cat") == [256, ord("t")]
    assert not loaded(byte_level_model("llama-bpe", add_bos_token=False)).adds_bos
    assert loaded(byte_level_model("gpt-2", add_bos_token=True)).adds_bos


def test_models_without_tokenizer() -> None:
    assert load_tokenizer(model()) is None
    assert load_tokenizer(model(model="no_vocab")) is None


UNSUPPORTED = {
    "unknown rule": (byte_level_model("superbpe"), "'superbpe' .* knows gpt-2, .*smollm"),
    "no rule": (byte_level_model(pre=""), "the rule ''"),
    "default rule": (byte_level_model(pre="default"), "the rule 'default'"),
    "other kind": (model(model="bert"), r"kind 'bert'; hotloop knows gpt2, llama"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_is_named(case: str) -> None:
    file, found = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=found):
        load_tokenizer(file)


DAMAGED = {
    "no tokens": byte_level_model(tokens=None),
    "empty tokens": byte_level_model(tokens=[]),
    "tokens are numbers": byte_level_model(tokens=[1, 2]),
    "tokens are a text": byte_level_model(tokens="abc"),
    "token twice": byte_level_model(tokens=["a", "b", "a"], token_type=[1] * 3, merges=["a b"]),
    "too few types": byte_level_model(token_type=[1]),
    "types are texts": byte_level_model(token_type=["1"] * 262),
    "no merges": byte_level_model(merges=None),
    "merge of one": byte_level_model(merges=["the"]),
    "merge of unknown": byte_level_model(merges=["Ġ xyz"]),
    "merge into unknown": byte_level_model(merges=["a b"]),
    "bos out of range": byte_level_model(bos_token_id=262),
    "eos out of range": byte_level_model(eos_token_id=2**32 - 1),
    "bos is a text": byte_level_model(bos_token_id="1"),
    "template is a number": byte_level_model(chat_template=3),
    "kind is a number": model(model=3),
    "no scores": model(model="llama", tokens=["a"]),
    "too few scores": model(model="llama", tokens=["a", "b"], scores=[0.0]),
    "scores are texts": model(model="llama", tokens=["a"], scores=["a"]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_clear_sentence(case: str) -> None:
    with pytest.raises(ModelFileError) as error:
        load_tokenizer(DAMAGED[case])
    assert str(error.value).startswith("small.gguf ")
    assert "tokenizer" in str(error.value) or "merge" in str(error.value)
    assert "\n" not in str(error.value)


def test_types_may_be_missing_and_texts_empty() -> None:
    assert loaded(byte_level_model(token_type=None)).encode("<s>") == list(b"<s>")
    fields = {
        "tokens": [*ALPHABET, "aa", "", "x" * 9],
        "token_type": [1] * 257 + [3, 4],
        "merges": ["a a"],
    }
    tokenizer = loaded(byte_level_model(**fields, bos_token_id=None, eos_token_id=None))
    assert tokenizer.encode("aaa" + "x" * 9) == [256, ord("a"), 258]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (None, None, ())


def test_ends_of_generation_by_their_texts() -> None:
    def ends(texts: list[str], type: int = 3, **fields: object) -> list[str]:
        tokenizer = loaded(
            byte_level_model(
                tokens=[*ALPHABET, *texts],
                token_type=[1] * 256 + [type] * len(texts),
                merges=["a a"],
                bos_token_id=None,
                **{"eos_token_id": None, **fields},
            )
        )
        return [tokenizer.token_text(id) for id in tokenizer.stop_ids]

    assert ends(["aa", "<|eot_id|>", "<|eom_id|>"]) == ["<|eot_id|>", "<|eom_id|>"]
    assert ends(["aa", "<|im_end|>"], type=4) == ["<|im_end|>"]  # added, though not as control
    assert ends(["aa", "</s>"], type=1) == []  # HTML, not an end
    assert ends(["aa", "</s>"], type=4) == []
    assert ends(["aa", "<|end|>"]) == ["<|end|>"]
    assert ends(["aa", "<|end|>", "<|return|>", "<|call|>"]) == ["<|return|>", "<|call|>"]
    named = {"eos_token_id": 257, "eot_token_id": 258, "eom_token_id": 259}
    assert ends(["aa", "<x>", "<y>", "<z>"], **named) == ["<x>", "<y>", "<z>"]


# SentencePiece.

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_model(pieces: Mapping[str, float], **fields: object) -> ModelFile:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "<tool>", *pieces]
    types = [2, 3, 3, *[6] * 256, 4, *[1] * len(pieces)]
    given: dict[str, object] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [0.0] * 260 + list(pieces.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return model(**{**given, **fields})


def texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.token_text(id) for id in ids]


def test_sentencepiece_by_hand() -> None:
    pieces = {"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -2.0, "▁a": -1.0, "bab": -3.0, "▁▁": -4.0}
    tokenizer = loaded(sentencepiece_model(pieces))
    assert texts(tokenizer, tokenizer.encode("abab")) == [" a", "bab"]  # With a space before it.
    assert texts(tokenizer, tokenizer.encode("b  b")) == [" ", "b", "  ", "b"]
    assert tokenizer.encode("é") == [260, 3 + 0xC3, 3 + 0xA9]  # ▁, then its bytes.
    assert tokenizer.decode(tokenizer.encode("abé 🙂")) == "abé 🙂"
    assert streamed(tokenizer, tokenizer.encode("é 🙂")) == " é 🙂"
    assert tokenizer.adds_bos
    assert tokenizer.stop_ids == (2,)
    assert tokenizer.encode("") == []
    bare = loaded(sentencepiece_model(pieces, add_space_prefix=False, add_bos_token=False))
    assert texts(bare, bare.encode("abab")) == ["ab", "ab"]
    assert bare.decode(bare.encode(" ab")) == " ab"
    assert not bare.adds_bos
    assert not bare.adds_eos
    assert loaded(sentencepiece_model(pieces, add_eos_token=True)).adds_eos


def test_sentencepiece_special_tokens() -> None:
    tokenizer = loaded(sentencepiece_model({"▁": -2.0, "a": -1.0, "<": -3.0, "</s>x": -1.0}))
    a = tokenizer.encode("a")
    assert tokenizer.encode("a</s>a<tool>a") == [*a, 2, *a, 259, *a]
    assert 2 not in tokenizer.encode("a</s>a", special=False)
    assert 259 in tokenizer.encode("<tool>", special=False)
    assert tokenizer.decode([2, *a], special=False) == "a"
    assert tokenizer.decode([2, 259]) == "</s><tool>"


def test_phi3_takes_spaces_after_its_tokens_away() -> None:
    pieces = {"▁": -2.0, "a": -1.0, "▁a": -0.5, "\n": -3.0}
    given = sentencepiece_model(pieces, add_space_prefix=False)
    file = ModelFile(given.path, "phi3", given.metadata, {})
    a = 262 - 1
    assert loaded(file).encode("<tool> \n a</s>\n<s> a") == [
        259,
        a,
        2,
        1,
        *loaded(file).encode(" a"),
    ]
    assert loaded(given).encode("</s>\n") == [2, loaded(given).encode("\n")[0]]


def test_sentencepiece_unknown_characters() -> None:
    tokens, types = ["<unk>", "a"], [2, 1]
    fields = {"model": "llama", "tokens": tokens, "token_type": types, "scores": [0.0, 0.0]}
    with_unknown = model(**fields, unknown_token_id=0, add_space_prefix=False)
    assert loaded(with_unknown).encode("aéa") == [1, 0, 1]
    without = model(**fields, add_space_prefix=False)
    assert loaded(without).encode("aéa") == [1, 1]


def joined_by_definition(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's rule as it is stated: the best pair first, the leftmost of equals."""
    pieces = list(text)
    while True:
        pairs = [
            (-scores[left + right], at)
            for at, (left, right) in enumerate(pairwise(pieces))
            if left + right in scores
        ]
        if not pairs:
            return pieces
        at = min(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@settings(max_examples=300)
@given(
    scores=st.dictionaries(
        st.text("ab▁", min_size=2, max_size=4), st.integers(-4, 0).map(float), max_size=15
    ),
    text=st.text("ab ", max_size=30),
)
def test_sentencepiece_equals_its_definition(scores: dict[str, float], text: str) -> None:
    scores = {"a": -9.0, "b": -9.0, "▁": -9.0} | scores
    tokens = list(scores)
    codec = SentencePieceCodec(
        tokens, list(scores.values()), [TokenType.NORMAL] * len(tokens), None, prefix_space=False
    )
    expected = joined_by_definition(text.replace(" ", "▁"), scores)
    assert [tokens[id] for id in codec.encode(text, special=True)] == expected


# Hugging Face folders.


def folder(tmp_path: Path, backend: tokenizers.Tokenizer | None, **config: object) -> ModelFile:
    if backend is not None:
        backend.save(str(tmp_path / "tokenizer.json"))
    metadata = {"model_type": "llama", **config}
    return ModelFile(tmp_path, "llama", metadata, {}, texts=lambda: read_texts(tmp_path))


def backend_by_hand() -> tokenizers.Tokenizer:
    vocabulary = {text: id for id, text in enumerate([*ALPHABET, "he"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("h", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    return backend


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(folder(tmp_path, None)) is None


def test_folder_byte_level(tmp_path: Path) -> None:
    backend = backend_by_hand()
    file = folder(tmp_path, backend, bos_token_id=257, eos_token_id=[258, 257, 9999, None])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 256}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "T"}')
    tokenizer = loaded(file)
    assert tokenizer.encode("he</s>") == [256, 258]
    assert tokenizer.encode("</s>", special=False) == list(b"</s>")
    assert tokenizer.decode(tokenizer.encode("hé 🙂</s>")) == "hé 🙂</s>"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (257, 258, False)
    assert tokenizer.stop_ids == (256, 257, 258, 259)  # The last one by its text.
    assert tokenizer.chat_template == "T"

    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 257)]
    )
    assert loaded(folder(tmp_path, backend, bos_token_id=257)).adds_bos
    (tmp_path / "chat_template.jinja").write_text("{{ 'é' }}", encoding="utf-8")
    assert loaded(folder(tmp_path, backend)).chat_template == "{{ 'é' }}"


def test_folder_bos_and_eos_by_their_texts(tmp_path: Path) -> None:
    """Where config.json names no ids, or another end than the tokenizer's own."""
    file = folder(tmp_path, backend_by_hand(), eos_token_id=257)
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(config))
    tokenizer = loaded(file)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (257, 257, True)
    assert tokenizer.stop_ids == (257, 258, 259)
    path.write_text(json.dumps({**config, "bos_token": "he", "eos_token": ["</s>"]}))
    assert loaded(file).bos_id is None  # An ordinary token begins nothing.
    assert not loaded(file).adds_bos
    path.write_text(json.dumps({**config, "add_bos_token": False}))
    assert not loaded(file).adds_bos


@pytest.mark.parametrize(
    ("config", "template"),
    [
        ("{}", None),
        ('{"chat_template": null}', None),
        ('{"chat_template": [{"name": "tools", "template": "A"}]}', None),
        (
            '{"chat_template": [{"name": "tools", "template": "A"}, '
            '{"name": "default", "template": "B"}]}',
            "B",
        ),
    ],
)
def test_folder_templates(config: str, template: str | None, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert loaded(folder(tmp_path, backend_by_hand())).chat_template == template


def test_folder_sentencepiece(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "</s>": 4}
    vocabulary |= {text: 5 + index for index, text in enumerate(BYTES)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["</s>"])
    tokenizer = loaded(folder(tmp_path, backend, eos_token_id=4))
    ids = tokenizer.encode("a aé</s>")
    assert ids == [3, 3, 5 + 0xC3, 5 + 0xA9, 4]
    assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False) == "a aé</s>"
    assert streamed(tokenizer, ids) == " a aé</s>"


def test_folders_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in ("", "{", "[]", '{"model": {}}'):
        path.write_text(content)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
            load_tokenizer(folder(tmp_path, None))
    backend = backend_by_hand()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        load_tokenizer(folder(tmp_path, backend))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match="not valid UTF-8"):
        load_tokenizer(folder(tmp_path, backend_by_hand()))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(folder(tmp_path, backend_by_hand()))
