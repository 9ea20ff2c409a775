"""hotloop convert: the same bits from a file that needs no packing; damage is one sentence."""

import json
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import DATA
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shell import Shell
from weights import gguf_bytes

from hotloop import Model, load
from hotloop.backends.cpu import packed
from hotloop.backends.cpu.executable import Weights
from hotloop.frontends.decoder import Step
from hotloop.frontends.inventory import take_inventory
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.packed_file import FIRST_BLOB, MAGIC, read_packed_file, write_packed_file
from hotloop.frontends.quantised import quantised
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.kernels import layout
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError, UsageError

TINY = DATA / "tiny"
FAMILIES = sorted(path.name for path in TINY.iterdir())


def converted(source: Path, target: Path) -> Path:
    write_packed_file(decoder(open_model(source)), target)
    return target


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(TINY / "llama", tmp_path_factory.mktemp("packed") / "llama.hotloop")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def arena(path: Path) -> np.ndarray:
    """The packed weights of the model at `path`, in memory."""
    file = open_model(path)
    model, step = decoder(file), Step(context=32)
    graph = model.graph(step)
    weights = Weights(graph).fill(lambda name: model.weight(name, step).data, 3, ready=file.packed)
    return weights.arena.data


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_arena_from_every_family(family: str, tmp_path: Path) -> None:
    path = converted(TINY / family, tmp_path / "x.hotloop")
    np.testing.assert_array_equal(arena(path), arena(TINY / family))
    step = Step(context=32)
    graphs = [decoder(open_model(each)).graph(step) for each in (path, TINY / family)]
    assert graphs[0] == graphs[1]


def test_matrices_that_are_rounded_before(shell: Shell, tmp_path: Path) -> None:
    path, source = tmp_path / "x.hotloop", TINY / "llama"
    assert shell("convert", str(source), "-o", str(path), "--quantize", "q4_0") == 0
    step = Step(context=32)
    rounded = quantised(decoder(open_model(source)), "q4_0")
    graph = rounded.graph(step)
    weights = Weights(graph).fill(lambda name: rounded.weight(name, step).data, 1)
    assert decoder(open_model(path)).graph(step) == graph
    np.testing.assert_array_equal(arena(path), weights.arena.data)


def test_the_same_bits_from_the_default_model(
    smollm: Model, default_model: Path, tmp_path: Path
) -> None:
    path = converted(default_model, tmp_path / "smollm.hotloop")
    with load(path, 2, context=512) as model:
        ids = model.tokenize("The capital of France is")
        np.testing.assert_array_equal(model.logits(ids), smollm.logits(ids))
        assert model.stop_ids == smollm.stop_ids
        messages = [{"role": "user", "content": "Hi"}]
        assert model.render_chat(messages) == smollm.render_chat(messages)


def test_a_folders_tokenizer_comes_along(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for file in (TINY / "llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    import tokenizers
    from tokenizers import decoders, models

    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("T")
    path = converted(folder, tmp_path / "x.hotloop")
    for file in folder.iterdir():
        file.unlink()
    tokenizer = load_tokenizer(open_model(path))
    assert tokenizer is not None
    assert (tokenizer.encode("ab"), tokenizer.chat_template) == ([0, 1], "T")


def test_pieces_that_several_threads_read(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "CHUNK", 1 << 10)
    np.testing.assert_array_equal(arena(tiny_file), arena(TINY / "llama"))


def test_what_packed_weights_cannot_do(tiny_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is packed already; copy it instead"):
        converted(tiny_file, tmp_path / "again.hotloop")
    with pytest.raises(UnsupportedError, match="use the file that it was converted from"):
        _ = open_model(tiny_file).tensors["model.embed_tokens.weight"].data


def test_command(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "x.hotloop"
    assert shell("convert", str(TINY / "llama"), "-o", str(path)) == 0
    assert shell.out == f"{path}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["x.hotloop"]
    assert shell("explain", str(path), "-c", "32", "--json") == 0
    assert shell("inspect", str(path), "--json") == 0
    values = json.loads(shell.out)
    assert (values["kind"], values["runs"], values["parameters"]) == ("hotloop 1", True, 90_944)
    assert shell("diff", str(path), "--ids", "1") == 4
    assert shell("convert", str(TINY / "llama"), "-o", str(tmp_path / "no" / "x")) == 2
    assert "cannot be written" in shell.err


def test_interrupted_in_the_middle(tmp_path: Path) -> None:
    target = tmp_path / "x.hotloop"
    target.write_text("before")

    def interrupt(done: int, total: int | None, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_packed_file(decoder(open_model(TINY / "llama")), target, interrupt)
    assert [file.name for file in tmp_path.iterdir()] == ["x.hotloop"]
    assert target.read_text() == "before"


# Damage.


def changed_header(content: bytes, change: Any) -> bytes:
    """The file with `change` made to its header, which is sealed again."""
    start = struct.Struct("<8sIIQ32s")
    nbytes = start.unpack_from(content)[3]
    header = json.loads(content[start.size : start.size + nbytes])
    change(header)
    text = json.dumps(header).encode()
    head = start.pack(MAGIC, 1, 0, len(text), sha256(text).digest()) + text
    return head + content[len(head) :]


def set_size(header: dict[str, Any]) -> None:
    header["size"] += 1


def set_layout(header: dict[str, Any]) -> None:
    header["layouts"]["f32"] = "0" * 16


def add_layout(header: dict[str, Any]) -> None:
    header["layouts"]["q9_9"] = "0" * 16


def set_shape(header: dict[str, Any]) -> None:
    header["weights"]["blk.0.attn_q.weight"][1] = [1, 2]


def set_offset(header: dict[str, Any]) -> None:
    header["weights"]["blk.0.attn_q.weight"][2][0] = 1 << 40


def set_sum(header: dict[str, Any]) -> None:
    header["weights"]["blk.0.attn_q.weight"][2][2] += 1


def drop_texts(header: dict[str, Any]) -> None:
    del header["texts"]


def no_config(header: dict[str, Any]) -> None:
    header["texts"] = {}


def no_rounding(header: dict[str, Any]) -> None:
    header["quantised"] = "f99"


def no_format(header: dict[str, Any]) -> None:
    header["tensors"]["lm_head.weight"] = ["zz", [1], None]


def lists(header: dict[str, Any]) -> None:
    header["tensors"] = [[[[]]]]


CHANGES = {
    set_size: "bytes, not",
    set_layout: "packs f32 in another way than this hotloop; convert",
    add_layout: "packs q9_9 in another way",
    set_shape: "and the model needs",
    set_offset: "outside of it",
    set_sum: "the weight blk.0.attn_q.weight is not what was written",
    drop_texts: "not of its form",
    no_config: "not of its form",
    no_format: "not of its form",
    no_rounding: "its matrices were rounded to 'f99'",
    lists: "not of its form",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_headers_that_do_not_fit(change: Any, tiny_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.hotloop"
    path.write_bytes(changed_header(tiny_file.read_bytes(), change))
    with pytest.raises(ModelFileError, match=CHANGES[change]) as error:
        arena(path)
    assert "\n" not in str(error.value)


def test_other_versions_and_files(tiny_file: Path, tmp_path: Path) -> None:
    content = tiny_file.read_bytes()
    path = tmp_path / "x.hotloop"
    path.write_bytes(MAGIC + struct.pack("<I", 2) + content[12:])
    with pytest.raises(ModelFileError, match="is version 2, and this hotloop reads 1; convert"):
        open_model(path)
    path.write_bytes(MAGIC)
    with pytest.raises(ModelFileError, match="it ends within its header"):
        open_model(path)
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="is not a packed file"):
        read_packed_file(path)


def test_a_format_that_is_packed_anew(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint follows from what packing does, not from a number that one may forget."""
    layout.layout_of.cache_clear()
    real = layout.pack

    def other(data: np.ndarray, type: Any, out: np.ndarray) -> None:
        real(data, type, out)
        out[:] = out[::-1].copy()

    monkeypatch.setattr(layout, "pack", other)
    with pytest.raises(ModelFileError, match="packs f32 in another way"):
        open_model(tiny_file)
    layout.layout_of.cache_clear()


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject, tiny_file: Path, tmp_path: Path) -> None:
    """Truncated anywhere, or any byte that means something changed: an error, never other bits."""
    content = bytearray(tiny_file.read_bytes())
    path = tmp_path / "x.hotloop"
    head = 56 + struct.unpack_from("<Q", content, 16)[0]
    if data.draw(st.booleans()):
        path.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
    else:
        inside = st.integers(0, head - 1) | st.integers(FIRST_BLOB, len(content) - 1)
        at = data.draw(inside)
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
    sentence = ""
    try:
        found = arena(path)
    except HotloopError as error:
        sentence = str(error)
    assert "\n" not in sentence
    if not sentence:
        np.testing.assert_array_equal(found, arena(TINY / "llama"))
        reserved = content[12:16] != b"\0\0\0\0"
        assert reserved or at >= FIRST_BLOB  # what nobody reads: padding


def test_split_and_quantised_models(tmp_path: Path) -> None:
    """A model in several files becomes one; what is packed cannot be rounded any more."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=3)
    copy_model(gguf_bytes(), writer, tmp_path)
    whole, parts = tmp_path / "whole.gguf", sorted(tmp_path.glob("m-*.gguf"))
    whole.write_bytes(gguf_bytes())
    assert len(parts) == 4
    path = converted(parts[1], tmp_path / "x.hotloop")
    np.testing.assert_array_equal(arena(path), arena(whole))
    assert load_tokenizer(open_model(path)) is not None
    assert take_inventory(parts[2]).kind == "GGUF 3 in 4 files"
    assert take_inventory(parts[2]).nbytes == take_inventory(whole).nbytes
    with pytest.raises(UsageError, match="is packed already; quantise the file it was made from"):
        load(path, 2, context=32, quantize="q4_0")


def copy_model(content: bytes, writer: gguf.GGUFWriter, folder: Path) -> None:
    """Write the model in `content` with another writer."""
    source = folder / "source.gguf"
    source.write_bytes(content)
    reader = gguf.GGUFReader(source)
    for key, entry in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, *inner = entry.types
        writer.add_key_value(key, entry.contents(), kind, inner[0] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
