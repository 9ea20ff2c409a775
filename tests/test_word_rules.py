"""Words before byte-level BPE: every rule gives llama.cpp's ids.

The vocabulary in `data/words.json` was trained without any rule, so its merges join what the rules
keep apart: letters with digits, spaces, punctuation. A wrong rule shows in the ids.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.frontends import byte_level
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.tokenizer import Tokenizer
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.frontends.word_rules import RULES

DATA = json.loads((Path(__file__).parent / "data" / "words.json").read_text(encoding="utf-8"))
EXPECTED: dict[str, list[list[int]]] = {
    name: group["ids"] for group in DATA["ids"] for name in group["pre"]
}
#: llama.cpp leaves combining marks out of their words; the models' own files don't.
MARKS = ("gpt-4o", "llama4", "kanana2", "minimax-m2", "tekken")


def tokenizer(pre: str) -> Tokenizer:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": DATA["tokens"],
        "tokenizer.ggml.merges": DATA["merges"],
    }
    made = load_tokenizer(ModelFile(Path("words.gguf"), "llama", metadata, {}))
    assert made is not None
    return made


def test_every_rule_has_expected_ids() -> None:
    assert set(EXPECTED) == set(RULES)


@pytest.mark.parametrize("pre", RULES)
def test_ids_are_llama_cpps(pre: str) -> None:
    made = tokenizer(pre)
    for text, ids in zip(DATA["texts"], EXPECTED[pre], strict=True):
        if pre in MARKS and "हिन्दी" in text:
            continue
        assert made.encode(text) == ids, text
        assert made.decode(ids) == text


def words(pre: str, text: str) -> list[str]:
    found = byte_level.word_cutter(RULES[pre]).pre_tokenize_str(text)
    return [byte_level.spelling(word).decode() for word, _ in found]


@pytest.mark.parametrize("pre", MARKS)
def test_combining_marks_belong_to_their_words(pre: str) -> None:
    assert words(pre, "हिन्दी में") == ["हिन्दी", " में"]
    assert words("llama-bpe", "हिन्दी") != ["हिन्दी"]


def test_some_words_by_hand() -> None:
    assert words("gpt-4o", "iPhoneMax don't 12345") == [
        "i", "Phone", "Max", " don't", " ", "123", "45",
    ]  # fmt: skip
    assert words("tekken", "HTMLParser 12") == ["HTMLParser", " ", "1", "2"]
    assert words("deepseek-v3", "x_1 (foo) 1234") == [
        "x", "_", "1", " (", "foo", ")", " ", "123", "4",
    ]  # fmt: skip
    assert words("falcon", "a+b 1234") == ["a", "+", "b", " ", "123", "4"]
    assert words("viking", "Hei, 42!") == ["Hei", ",", " ", "4", "2", "!"]


def test_text_is_composed_where_the_models_files_say_so() -> None:
    decomposed = "e\N{COMBINING ACUTE ACCENT}"
    for pre, rule in RULES.items():
        if pre in ("qwen2", "olmo", "command-r", "llama-bpe", "gpt-4o"):
            assert rule.nfc == (pre in ("qwen2", "olmo", "command-r"))
            assert tokenizer(pre).decode(tokenizer(pre).encode(decomposed)) == (
                "é" if rule.nfc else decomposed
            )
