"""Chat templates of the forms that models ship, rendered as transformers' apply_chat_template does.

`data/chat_renderings.json` has templates (with tools, roles that alternate, content in parts,
macros, dates, generation tags), conversations, and what transformers made of each pair.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA

from hotloop.frontends.chat_template import render, render_conversation
from hotloop.frontends.hf_folder import read_texts
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.util.errors import TemplateError, UnsupportedError

REFERENCE = json.loads((DATA / "chat_renderings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", REFERENCE["templates"])
def test_as_transformers_renders(name: str) -> None:
    cases = [case for case in REFERENCE["renderings"] if case["template"] == name]
    assert cases
    for case in cases:
        made: Any
        try:
            made = render(
                REFERENCE["templates"][name],
                REFERENCE["conversations"][case["conversation"]],
                bos_token="<s>",
                eos_token="</s>",
                add_generation_prompt=case["generation"],
                tools=REFERENCE["tools"] if case["tools"] else None,
                **case["extra"],
            )
        except TemplateError as error:
            made = error
        if isinstance(case["expected"], str):
            assert made == case["expected"], case
        else:  # transformers refuses, too
            assert isinstance(made, TemplateError), case


# Which template a conversation gets.

TOKENS = ["a", "<s>", "</s>"]


def from_gguf(**templates: object) -> ModelFile:
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*TOKENS, "aa"],
        "tokenizer.ggml.token_type": [1, 3, 3, 1],
        "tokenizer.ggml.merges": ["a a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for name, template in templates.items():
        key = "tokenizer.chat_template" + ("" if name == "default" else f".{name}")
        metadata[key] = template
    return ModelFile(Path("x.gguf"), "llama", metadata, {})


def from_folder(folder: Path, config: object, files: dict[str, str]) -> ModelFile:
    import tokenizers
    from tokenizers import decoders, models

    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    metadata = {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}
    return ModelFile(folder, "llama", metadata, {}, texts=lambda: read_texts(folder))


def rendered(file: ModelFile, tools: Any = None, **names: object) -> str:
    tokenizer = load_tokenizer(file)
    assert tokenizer is not None
    return render_conversation(tokenizer, [{"role": "user", "content": "x"}], tools, **names)


PLAIN, WITH_TOOLS = "plain {{ bos_token }}{{ eos_token }}", "{{ tools | length }} tools"


def test_models_with_a_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH_TOOLS}]
    files = {
        "gguf": from_gguf(default=PLAIN, tool_use=WITH_TOOLS),
        "config": from_folder(tmp_path, {"chat_template": named}, {}),
        "mapping": from_folder(
            tmp_path, {"chat_template": {"default": PLAIN, "tool_use": WITH_TOOLS}}, {}
        ),
    }
    (tmp_path / "jinja").mkdir()
    jinja = {
        "chat_template.jinja": PLAIN,
        "additional_chat_templates/tool_use.jinja": WITH_TOOLS,
    }
    files["jinja"] = from_folder(tmp_path / "jinja", {}, jinja)
    for kind, file in files.items():
        assert rendered(file) == "plain <s></s>", kind
        assert rendered(file, tools=[{}]) == "1 tools", kind


def test_models_with_one_template_or_none(tmp_path: Path) -> None:
    assert rendered(from_gguf(default=WITH_TOOLS), tools=[{}, {}]) == "2 tools"
    assert rendered(from_gguf(default="{{ mood }}"), mood="fine") == "fine"
    only_tools = from_gguf(tool_use=WITH_TOOLS)
    with pytest.raises(UnsupportedError, match="no chat template"):
        rendered(only_tools)
    assert rendered(only_tools, tools=[{}]) == "1 tools"
    for config in ({}, {"chat_template": 3}, {"chat_template": [3, {"name": "x"}]}):
        with pytest.raises(UnsupportedError, match="no chat template"):
            rendered(from_folder(tmp_path, config, {}))
