"""Hostile model files: every reader answers with one sentence, in time and in little memory.

Sound files are changed at random: cut off, bits flipped, bytes exchanged for large numbers, JSON
values for others of any kind and size. `docs/robustness.md` lists what is tried.
"""

import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from conftest import DATA
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from waiting import PATIENCE
from weights import gguf_bytes

from hotloop.frontends.chat_template import render
from hotloop.frontends.decoder import Step
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.report.inspection import inspect
from hotloop.util.errors import HotloopError

MEMORY = 2 << 30
"""Bytes that any of these may ask for, on top of what the test process has."""

pytestmark = pytest.mark.usefixtures("little_memory")
fuzzing = settings(
    max_examples=80,  # to look for more, try more, and without `derandomize`
    deadline=1000 * PATIENCE,  # none may hang, all are done in a few milliseconds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def little_memory() -> Iterator[None]:
    """An allocation beyond the limit is a MemoryError, which no reader may let through."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check(path: Path) -> None:
    """Read all of the model at `path`, which either works or is one sentence of ours."""
    for read in (inspect, read_all):
        sentence = ""
        try:
            read(path)
        except HotloopError as error:
            sentence = str(error)
        assert "\n" not in sentence
        assert len(sentence) < 2000


def read_all(path: Path) -> None:
    file = open_model(path)
    tokenizer = load_tokenizer(file)
    if tokenizer is not None:
        ids = tokenizer.encode("Hello, <s>wörld\n  12")
        tokenizer.decode(ids)
        tokenizer.stream().push(0)
    model = decoder(file)
    for weight in model.graph(Step(context=64)).weights:
        _ = model.weight(weight.name, Step(context=64)).data


# Bytes.


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """`content`, cut off or with a few places changed."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["bit", "byte", "number", "cut", "double", "drop"]))
        if kind == "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte":
            data[at] = draw(st.integers(0, 255))
        elif kind == "number":
            number = draw(st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
            data[at : at + 8] = number.to_bytes(8, "little")
        elif kind == "cut":
            del data[max(1, at) :]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        else:
            del data[max(1, at) : max(1, at) + draw(st.integers(1, 64))]
    return bytes(data)


GGUF = gguf_bytes()


@fuzzing
@given(data=damaged(GGUF))
def test_gguf(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    check(path)


def test_gguf_cut_in_its_header(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(GGUF)
    check(path)
    assert decoder(open_model(path)).name == "llama"
    header = range(1, GGUF.index(b"token_embd.weight") + 40)
    for end in [*header[:600], *header[600:-600:11], *header[-600:]]:
        path.write_bytes(GGUF[:end])
        with pytest.raises(HotloopError):
            open_model(path)


# A Hugging Face folder.

TINY = DATA / "tiny" / "llama"
WEIGHTS = (TINY / "model.safetensors").read_bytes()
CONFIG = json.loads((TINY / "config.json").read_text())


def byte_level_json() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: id for id, text in enumerate([*alphabet, "he", "Ġt"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("h", "e"), ("Ġ", "t")]))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("~", "-")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 258)])
    text: str = backend.to_str()
    return text


TOKENIZER = byte_level_json()


def write_folder(folder: Path, **files: bytes | str) -> Path:
    sound = {
        "config.json": json.dumps(CONFIG),
        "model.safetensors": WEIGHTS,
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": '{"chat_template": "T", "bos_token": "<s>"}',
        "generation_config.json": '{"eos_token_id": [1, 2]}',
    }
    for name, content in {**sound, **files}.items():
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    return folder


def test_the_sound_folder(tmp_path: Path) -> None:
    read_all(write_folder(tmp_path))


@fuzzing
@given(data=damaged(WEIGHTS[:4000]))
def test_safetensors(data: bytes, tmp_path: Path) -> None:
    check(write_folder(tmp_path, **{"model.safetensors": data + WEIGHTS[4000:]}))


@fuzzing
@given(data=st.data())
def test_texts_of_a_folder_as_bytes(data: st.DataObject, tmp_path: Path) -> None:
    sound = {"config.json": json.dumps(CONFIG), "tokenizer.json": TOKENIZER}
    name = data.draw(st.sampled_from(list(sound)))
    check(write_folder(tmp_path, **{name: data.draw(damaged(sound[name].encode()))}))


#: Values that do not belong where they are put.
HOSTILE = st.sampled_from(
    [
        None, True, -1, 0, 1, 3, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e308, float("inf"),
        float("nan"), "", "x", "x" * 10_000, "\ud800", "\0", [], {}, [[]], {"": {}}, [0] * 1000,
        {"type": "x"}, "(?:a+)+$", "{{", [{"a": [1, None, "b"]}],
    ]
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with a few of its parts exchanged, dropped or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        here, steps = value, draw(st.integers(1, 6))
        for step in range(steps):
            keys = list(here) if isinstance(here, dict) else range(len(here))
            if not keys:
                break
            key = keys[draw(st.integers(0, len(keys) - 1))]
            if step == steps - 1 or not isinstance(here[key], dict | list) or not here[key]:
                if draw(st.booleans()) or not isinstance(here, dict):
                    here[key] = copy.deepcopy(draw(HOSTILE))  # or it would change for all
                else:
                    del here[key]
                break
            here = here[key]
    return value


@fuzzing
@given(config=changed(CONFIG))
def test_config(config: Any, tmp_path: Path) -> None:
    check(write_folder(tmp_path, **{"config.json": json.dumps(config)}))


@fuzzing
@given(tokenizer=changed(json.loads(TOKENIZER)))
def test_tokenizer_json(tokenizer: Any, tmp_path: Path) -> None:
    check(write_folder(tmp_path, **{"tokenizer.json": json.dumps(tokenizer)}))


SMALL = ("tokenizer_config.json", "generation_config.json", "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", *SMALL])
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "{}", "[]", "null", '"x"', "\ufeff{}", "{" * 9],
    ids=lambda text: text[:6],
)
def test_json_that_is_deep_or_of_another_kind(name: str, text: str, tmp_path: Path) -> None:
    check(write_folder(tmp_path, **{name: text}))


# Templates.

TEMPLATE = json.loads((DATA / "chat_renderings.json").read_text())["templates"]["chatml with tools"]
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
PIECES = (
    "{{", "}}", "{%", "%}", "{% for a in range(99999) %}", "{% endfor %}", "| join", "| sort",
    "* 99999", "** 9999", "messages", "[0]", ".content", "~", "| tojson", "| indent(99)", "(", ")",
    "{% set x = x ~ x %}", "namespace(x=[1])", "| list", "{% macro m() %}{{ m() }}{% endmacro %}",
    "{{ m() }}", "[1] * 99999", "'a' * 99999", ".__class__", "| replace('', 'xx')", "\0", "\n",
    "{% include 'x' %}", "{% import 'x' as y %}", "loop", "cycle", "{% break %}", "{#", "#}",
)  # fmt: skip


@fuzzing
@given(data=st.data())
def test_templates(data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        template = data.draw(damaged(TEMPLATE.encode())).decode(errors="replace")
    else:
        template = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=14)))
    sentence = ""
    try:
        render(template, MESSAGES, bos_token="<s>")
    except HotloopError as error:
        sentence = str(error)
    assert "\n" not in sentence


def test_tokenizers_at_which_the_library_panics(tmp_path: Path) -> None:
    """A merge whose result is no token; not an Exception in Python, but BaseException."""
    broken = json.loads(TOKENIZER)
    del broken["model"]["vocab"]["he"]
    write_folder(tmp_path, **{"tokenizer.json": json.dumps(broken)})
    check(tmp_path)
    with pytest.raises(HotloopError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(open_model(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"head_dim": 2**31}, "heads of 2147483648 elements"),
        ({"head_dim": 2**63}, "which no model has"),
        ({"rope_scaling": {"rope_type": ["yarn"], "factor": 2}}, "scales RoPE by"),
        ({"rope_scaling": {"type": {"a": 1}, "factor": 2}}, "scales RoPE by"),
    ],
)
def test_configs_that_took_memory_or_hashes(
    wrong: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """Found by many more examples than are tried each time."""
    config = {key: value for key, value in CONFIG.items() if key != "rope_parameters"}
    write_folder(tmp_path, **{"config.json": json.dumps({**config, "rope_theta": 1e4, **wrong})})
    check(tmp_path)
    with pytest.raises(HotloopError, match=sentence):
        decoder(open_model(tmp_path))


def test_a_template_of_tokens_that_are_not_there(tmp_path: Path) -> None:
    broken = json.loads(TOKENIZER)
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    missing = {"SpecialToken": {"id": "<gone>", "type_id": 0}}
    broken["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [missing, piece],
        "pair": [piece],
        "special_tokens": {"<other>": {"id": "<other>", "ids": [0], "tokens": ["<other>"]}},
    }
    write_folder(tmp_path, **{"tokenizer.json": json.dumps(broken)})
    check(tmp_path)
    with pytest.raises(HotloopError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(open_model(tmp_path))


def test_a_regular_expression_that_backtracks(tmp_path: Path) -> None:
    slow = json.loads(TOKENIZER)
    slow["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a|aa)+$"
    write_folder(tmp_path, **{"tokenizer.json": json.dumps(slow)})
    tokenizer = load_tokenizer(open_model(tmp_path))
    assert tokenizer is not None
    with pytest.raises(HotloopError, match="cannot be cut into words"):
        tokenizer.encode("a" * 60 + "b")
