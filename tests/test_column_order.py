"""Checkpoints whose columns are in the order of activations: the published formula, column by
column, is what they mean; they loop, share what is gathered, and give the same bits everywhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA
from prequantised import K, N, Tensors, folder, neighbours, numbers, quantised_folder, words

from hotloop import Model, load
from hotloop.backends.cpu import jit
from hotloop.cli.main import main
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.column_order import order_weight
from hotloop.frontends.decoder import Step
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.packed_file import write_packed_file
from hotloop.frontends.weights import fold_orders
from hotloop.ir.formats import dequantise
from hotloop.ir.program import Call, Kernel, Loop
from hotloop.ir.types import tensor
from hotloop.machine.machine import Machine
from hotloop.report.diff import compare
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError

PROMPT = [1, 5, 9, 2, 77, 31, 8, 100, 64, 3, 12]
IDS = [1, 5, 9, 2, 7, 30, 11]


@pytest.fixture(autouse=True)
def unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's optimisations change no bit, and take most of a test's time."""
    monkeypatch.setattr(jit, "OPTIMISATION", 0)


def shuffled(module: str, columns: int) -> np.ndarray:
    """What a quantiser leaves: modules that read the same have the same groups."""
    alike = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
    layer, _, name = module.rpartition(".")
    seed = f"{layer}{alike.get(name, name)}".encode()
    return np.random.default_rng(list(seed)).permutation(neighbours(module, columns))


def each_by_itself(module: str, columns: int) -> np.ndarray:
    return np.random.default_rng(list(module.encode())).permutation(neighbours(module, columns))


def grouped_layer(bits: int, group: int, less: int) -> tuple[Tensors, np.ndarray]:
    """GPTQ's tensors, and w[n, k] of the published formula in float64, rounded once."""
    size = K if group == -1 else group
    codes, zeros, scales = numbers(bits, size)
    g_idx = np.random.default_rng(1).permutation(np.arange(K) // size)
    means = np.empty((N, K))
    for k in range(K):
        means[:, k] = scales[g_idx[k]].astype(np.float64) * (codes[k] - zeros[g_idx[k]])
    tensors = {
        "qweight": words(codes.T, bits).T,
        "qzeros": words(zeros - less, bits),
        "scales": scales,
        "g_idx": g_idx.astype(np.int32),
    }
    return tensors, means.astype(np.float32)


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_is_sorted_by_group(tmp_path: Path, bits: int, group: int, version: str) -> None:
    tensors, means = grouped_layer(bits, group, less=1 if version == "gptq" else 0)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True}
    path = folder(tmp_path, tensors, config | {"checkpoint_format": version})
    read = read_hf_folder(path).tensors
    weight = read["layer.weight"]
    order = np.arange(K)
    if group != -1:  # one group for all columns has one order
        order = read["layer.order"].data.view(np.int32)
        np.testing.assert_array_equal(order, np.argsort(tensors["g_idx"], kind="stable"))
    np.testing.assert_array_equal(dequantise(weight.data, weight.type), means[:, order])
    assert len(read) == (2 if group == -1 else 3)


@pytest.mark.parametrize("size", [K, 10**30])
def test_a_group_may_be_larger_than_the_matrix(tmp_path: Path, size: int) -> None:
    tensors, means = grouped_layer(4, -1, less=1)
    config = {"quant_method": "gptq", "bits": 4, "group_size": size}
    weight = read_hf_folder(folder(tmp_path, tensors, config)).tensors["layer.weight"]
    np.testing.assert_array_equal(dequantise(weight.data, weight.type), means)


def test_compressed_tensors_have_it_too(tmp_path: Path) -> None:
    tensors, means = grouped_layer(4, 64, less=0)
    g_idx = tensors["g_idx"]
    codes, zeros, scales = numbers(4, 64)
    parts = {
        "weight_packed": words(codes.T, 4),
        "weight_scale": scales.T.astype(np.float32),
        "weight_zero_point": words(zeros, 4).T,
        "weight_shape": np.array([N, K]),
        "weight_g_idx": g_idx,
    }
    read = read_hf_folder(folder(tmp_path, parts, {"quant_method": "compressed-tensors"})).tensors
    order, weight = read["layer.order"].data.view(np.int32), read["layer.weight"]
    np.testing.assert_array_equal(dequantise(weight.data, weight.type), means[:, order])
    parts["weight_g_idx"] = np.full(K, -1, np.int32)  # the compressor's "in no other order"
    path = folder(tmp_path, parts, {"quant_method": "compressed-tensors"})
    assert set(read_hf_folder(path).tensors) == {"layer.weight", "norm.weight"}


# models


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny llama as a quantiser leaves it, and what that means as float32."""
    return quantised_folder(tmp_path_factory.mktemp("gptq"), "gptq", shuffled)


def logits(path: Path, **options: object) -> np.ndarray:
    with load(path, 2, context=96, **options) as model:
        return model.logits(IDS).copy()


@pytest.mark.parametrize("groups", [shuffled, each_by_itself])
@pytest.mark.parametrize(
    ("method", "bits"), [("gptq", 4), ("gptq", 8), ("compressed-tensors", 4)], ids=str
)
@pytest.mark.parametrize("source", ["llama", "phi3"])
def test_a_model_is_that_of_its_numbers(
    tmp_path: Path,
    method: str,
    bits: int,
    groups: Callable[[str, int], np.ndarray],
    source: str,
) -> None:
    """phi3 has queries, keys and values in one matrix, and so in one order."""
    quantised, plain = quantised_folder(tmp_path, method, groups, bits, source)
    found = logits(quantised, activations="f32")
    np.testing.assert_allclose(found, logits(plain, activations="f32"), rtol=1e-4, atol=1e-4)
    assert decoder(open_model(quantised)).orders


def generate(model: Model, **options: float) -> list[int]:
    return [token.id for token in model.generate(PROMPT, 16, stop_ids=(), **options)]


def answers(model: Model) -> tuple[bytes, list[int], list[int]]:
    sampled = generate(model, temperature=0.9, top_k=40, seed=7)
    return model.logits(PROMPT).tobytes(), generate(model), sampled


@pytest.mark.parametrize("activations", ["q8", "f32"])
@pytest.mark.parametrize("groups", [shuffled, each_by_itself])
def test_every_rung_gives_the_same_bits(
    tmp_path: Path,
    activations: str,
    groups: Callable[[str, int], np.ndarray],
) -> None:
    path, _ = quantised_folder(tmp_path, "gptq", groups)
    seen = []
    for threads in (1, 3):
        with load(path, threads, SCHEDULES[0], activations, context=96) as bottom:
            for schedule in SCHEDULES[1:]:
                seen.append(answers(bottom.with_schedule(schedule)))
            seen.append(answers(bottom))
    assert all(entry == seen[0] for entry in seen)


def test_blocks_of_a_prompt_and_a_batch_give_the_same_bits(scattered: tuple[Path, Path]) -> None:
    long = [token % 131 for token in range(3, 103, 2)]
    with load(scattered[0], 2, context=128) as model:
        expected = model.logits(long)[-1].tobytes()  # token by token
        model._session.forget()
        alone = [token.id for token in model.generate(long, 8, stop_ids=())]
        assert model._session._prompt_program is not None
        model._session.forget()
        model._session.start(long, 1, Sampling())
        model._session.run()
        assert model._session.decode.view("logits").tobytes() == expected
        batch = model.batch(2, pages=2)
        rows = [Row(list(long), len(long), len(long) + 8, [page], Sampling()) for page in (0, 1)]
        for page in (0, 1):
            batch.prefill(long[:20], 0, [page])
            batch.prefill(long[20:-1], 20, [page])
        found: list[list[int]] = [[], []]

        def deliver(new: list[list[int]]) -> bool:
            for tokens, more in zip(found, new, strict=True):
                tokens += more
            return True

        batch.decode(rows, 8, deliver)
        assert found == [alone, alone]


def test_each_value_is_its_meaning(scattered: tuple[Path, Path]) -> None:
    """By 8-bit activations, too: what is gathered is then rounded."""
    with load(scattered[0], 2, "ops", context=32) as model:
        differences = compare(model, PROMPT[:3])
    assert max(d.error for d in differences) < 1e-5
    assert all(d.error == 0 for d in differences if d.op.name == "gather")


# programs


def layers(path: Path) -> tuple[Loop, Kernel]:
    """The loop over the layers of a decode step, and its kernel."""
    graph = decoder(open_model(path)).graph(Step(context=96))
    program = compile_graph(graph, Machine("test", 2), "pipelined").program
    (loop,) = [item for item in program.body if isinstance(item, Loop)]
    (call,) = loop.body
    assert isinstance(call, Call)
    return loop, call.kernel


@pytest.mark.parametrize(
    ("groups", "gathers"), [(neighbours, 0), (shuffled, 3), (each_by_itself, 6)]
)
def test_what_reads_the_same_in_one_order_shares_it(
    tmp_path: Path, groups: Callable[[str, int], np.ndarray], gathers: int
) -> None:
    """One loop over all layers, with as many stages as without; rows give down its order."""
    path, _ = quantised_folder(tmp_path / "some", "gptq", groups)
    loop, kernel = layers(path)
    ordered = [op.operands[1] for op in kernel.ops if op.name == "gather"]
    assert len(set(ordered)) == gathers
    orders = [arg for arg in loop.args if arg.name.endswith("order")]
    assert [arg.kind for arg in orders] == ["stacked"] * gathers
    assert loop.trip == 3
    without, _ = quantised_folder(tmp_path / "none", "gptq")
    assert len(kernel.stages) == len(layers(without)[1].stages)


def test_the_rows_before_down_are_in_its_order() -> None:
    """Biases, too, and the shared experts' net; what does not fit is left to be refused."""
    order = np.array([2, 0, 1], np.int32)
    made = {name: order_weight(f"blk.0.{name}", order) for name in ("ffn_down", "ffn_down_shexp")}
    tensors = {weight.name: weight for weight in made.values()}
    matrix, bias = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([5, 6, 7], np.float32)
    for name, values in {
        "ffn_gate_shexp.weight": matrix,
        "ffn_up.weight": matrix,
        "ffn_up.bias": bias,
        "ffn_gate.weight": matrix[:2],
        "attn_q.weight": matrix,
    }.items():
        full, data = f"blk.0.{name}", np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        tensors[full] = WeightData(full, tensor("f32", *values.shape), data)
    fold_orders(tensors, 1)
    found = {
        name: dequantise(weight.data, weight.type).tolist() for name, weight in tensors.items()
    }
    assert found == {
        "blk.0.ffn_gate_shexp.weight": matrix[order].tolist(),
        "blk.0.ffn_up.weight": matrix[order].tolist(),
        "blk.0.ffn_up.bias": [7, 5, 6],
        "blk.0.ffn_gate.weight": matrix[:2].tolist(),
        "blk.0.attn_q.weight": matrix.tolist(),
    }


def test_a_converted_file_gives_the_same_bits(scattered: tuple[Path, Path], tmp_path: Path) -> None:
    packed = tmp_path / "model.hotloop"
    write_packed_file(decoder(open_model(scattered[0])), packed)
    np.testing.assert_array_equal(logits(packed), logits(scattered[0]))


def test_every_command_takes_it(
    scattered: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(scattered[0])
    assert main(["inspect", path]) == 0
    assert "g_idx" in capsys.readouterr().out
    assert main(["explain", path]) == 0
    assert "order" in capsys.readouterr().out
    assert main(["convert", path, "-o", str(tmp_path / "model.hotloop")]) == 0


# files that are broken

SIZES = r"puts 63 columns into group 0, where the quantization_config has groups of 64"
BROKEN: dict[str, tuple[type[HotloopError], Callable[[np.ndarray], object], str]] = {
    "short": (ModelFileError, lambda g: g[:-1], r"g_idx I32\[255\] should be \[256\]"),
    "a matrix": (ModelFileError, lambda g: g[None], r"I32\[1,256\] should be \[256\]"),
    "a number": (ModelFileError, lambda g: g[:1], r"I32\[1\] should be \[256\]"),
    "too large": (ModelFileError, lambda g: np.where(g, g, 4), r"names group 4, .* 0 to 3"),
    "huge": (ModelFileError, lambda g: np.where(g, g, 2**31 - 1), "names group 2147483647"),
    "negative": (ModelFileError, lambda g: np.where(g, g, -1), "names group -1"),
    "floats": (UnsupportedError, lambda g: g.astype(np.float32), r"F32\[256\]; hotloop reads I32"),
    "long": (UnsupportedError, lambda g: g.astype(np.int64), r"I64\[256\]; hotloop reads I32"),
    "sizes": (UnsupportedError, lambda g: np.insert(g[g > 0], 0, [0] * 63 + [1]), SIZES),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_groups_are_one_sentence(case: str, tmp_path: Path) -> None:
    error, change, found = BROKEN[case]
    tensors, _ = grouped_layer(4, 64, less=1)
    tensors["g_idx"] = np.asarray(change(np.sort(tensors["g_idx"])))
    if tensors["g_idx"].dtype == np.int64 and case != "long":
        tensors["g_idx"] = tensors["g_idx"].astype(np.int32)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    with pytest.raises(error, match=found) as caught:
        read_hf_folder(folder(tmp_path, tensors, config))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_experts_in_an_order_of_their_own_are_refused() -> None:
    file = open_model(DATA / "tiny" / "qwen3_moe")
    order = order_weight("model.layers.0.mlp.experts.0.up_proj", np.arange(64)[::-1].astype("i4"))
    tensors = {**file.tensors, order.name: order}
    with pytest.raises(UnsupportedError, match=r"ffn_up_exps.0 quantised in the order"):
        decoder(replace(file, tensors=tensors))


def test_a_tensor_that_is_called_so_is_none() -> None:
    file = open_model(DATA / "tiny" / "llama")
    name = "model.layers.0.self_attn.q_proj.order"
    tensors = {**file.tensors, name: WeightData(name, tensor("f32", 64), np.zeros(256, np.uint8))}
    with pytest.raises(UnsupportedError, match=r"holds the tensor blk.0.attn_q.order, which"):
        decoder(replace(file, tensors=tensors))
