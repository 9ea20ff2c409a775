"""Decoder: what all families share, from a model file to the graph of one step.

A family file says how its config is read, how its tensors are called, and what one layer does; the
rest is here: embedding, the stack of layers, final norm, LM head, sampling. Tensors go by GGUF's
names everywhere; a family maps the names of Hugging Face to them.

State of a step, besides the KV cache of each layer: `ring`, the tokens of the sequence by position
(prompt and output, with room for the context and one more), and `control`, the sampling parameters
and the mailbox of the launch (`hotloop.ir.types.CONTROL`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Graph
from hotloop.ir.types import TensorType, tensor
from hotloop.util.errors import ModelFileError, UnsupportedError


@dataclass(frozen=True)
class Config:
    """The numbers of a decoder.

    `rope_scales` divide the frequencies of RoPE, one for each pair of a head (None: no scaling).
    `pairing` says which elements of a head rotate together: see the op `rope`.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    rope_scales: tuple[float, ...] | None
    pairing: str


@dataclass(frozen=True)
class Step:
    """Which step to build: `tokens` at once, a cache for `context` positions.

    `activations` is "q8" or "f32"; with "f32" the KV cache is float32, too. With `head`, the step
    ends with logits and a sampled token, else after the last layer (a prompt's inner blocks).
    """

    tokens: int = 1
    context: int = 2048
    activations: str = "q8"
    head: bool = True

    @property
    def padded_context(self) -> int:
        """The caches' length: kernels want a multiple of 16."""
        return -(-self.context // 16) * 16


class LayerBuilder:
    """What a family's layer function builds with: the ops of a layer, by the names of tensors."""

    def __init__(self, graph: GraphBuilder, decoder: "Decoder", step: Step) -> None:
        self.graph = graph
        self.decoder = decoder
        self.step = step
        self.prefix = ""

    @contextmanager
    def layer(self, i: int) -> Iterator[None]:
        self.prefix = f"blk.{i}."
        with self.graph.scope(f"blk.{i}"):
            yield
        self.prefix = ""

    def weight(self, name: str, *shape: int) -> str:
        """Declare the tensor `name`.weight of this layer, which must have the given shape."""
        full = f"{self.prefix}{name}.weight"
        return self.graph.weight(full, self.decoder.tensor_type(full, shape))

    def norm(self, x: str, name: str) -> str:
        """RMS norm with the weight `name`."""
        weight = self.weight(name, self.graph.types[x].shape[-1])
        return self.graph.op("rms_norm", x, weight, to=name, eps=self.decoder.config.eps)

    def linear(self, x: str, name: str, rows: int, to: str = "") -> str:
        """x · Wᵀ with W = `name`.weight of `rows` rows."""
        weight = self.weight(name, rows, self.graph.types[x].shape[-1])
        return self.graph.linear(x, weight, to=to or name)

    def rope(self, x: str) -> str:
        config = self.decoder.config
        return self.graph.op(
            "rope",
            x,
            "pos",
            "rope.table",
            to=f"{_last(x)}.rope",
            head_dim=config.head_dim,
            pairing=config.pairing,
        )

    def attention(self, q: str, k: str, v: str) -> str:
        """Append k and v to this layer's cache and attend over all of it.

        A single token's keys are split among the threads; a prompt has tokens enough to split.
        """
        config, graph = self.decoder.config, self.graph
        kind = "f32" if self.step.activations == "f32" else "f16"
        cache = tensor(kind, config.kv_heads, self.step.padded_context, config.head_dim)
        keys = graph.state(f"{self.prefix}keys", cache)
        values = graph.state(f"{self.prefix}values", cache)
        graph.op("store_keys", keys, k, "pos", head_dim=config.head_dim)
        graph.op("store_values", values, v, "pos", head_dim=config.head_dim)
        heads, dim = config.heads, config.head_dim
        inputs, scale = (q, keys, values, "pos"), dim**-0.5
        if self.step.tokens > 1:
            return graph.op("attention", *inputs, to="attn", heads=heads, scale=scale)
        partials = graph.op("attend", *inputs, to="attn.chunks", heads=heads, scale=scale)
        return graph.op("combine", partials, "pos", to="attn", heads=heads, head_dim=dim)

    def op(self, name: str, *operands: str, to: str = "") -> str:
        return self.graph.op(name, *operands, to=to)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@dataclass(frozen=True)
class Family:
    """One family of models: what its short file in `models/` exports.

    `hf_names` maps tensor names of Hugging Face to GGUF's, with `{i}` for the layer's number;
    `gguf_only` are tensors that GGUF files may hold besides.
    """

    architecture: str
    config: Callable[[ModelFile], Config]
    layer: Callable[[LayerBuilder, Config, str], str]
    hf_names: Mapping[str, str]
    gguf_only: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model file together with its family: builds graphs and finds their weights."""

    file: ModelFile
    family: Family
    config: Config
    tensors: Mapping[str, WeightData]

    @staticmethod
    def of(file: ModelFile, family: Family) -> "Decoder":
        config = family.config(file)
        _check(file, config)
        return Decoder(file, family, config, _named(file, family, config.layers))

    @property
    def head_weight(self) -> str:
        """The LM head's tensor: the embedding's where the two are tied."""
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a generation, by the metadata alone."""
        key = "tokenizer.ggml.eos_token_id" if is_gguf(self.file) else "eos_token_id"
        named = self.file.metadata.get(key)
        ids = named if isinstance(named, list | tuple) else [named]
        return tuple(token for token in ids if isinstance(token, int))

    def tensor_type(self, name: str, shape: tuple[int, ...]) -> TensorType:
        """The type that graph value `name` has: as stored, but vectors become float32."""
        if name not in self.tensors:
            raise ModelFileError(
                f"{self.file.path} has no tensor {name}, which {self.family.architecture} models "
                "need; the file is incomplete, download it again."
            )
        type = self.tensors[name].type
        if type.shape != shape:
            raise ModelFileError(
                f"{self.file.path}: tensor {name} is {type}, but the model's numbers ask for "
                f"[{','.join(map(str, shape))}]; the file is damaged, download it again."
            )
        return tensor("f32", *shape) if len(shape) == 1 else type

    def weight(self, name: str, step: Step) -> WeightData:
        """The data of a weight that `graph(step)` declares."""
        if name == "rope.table":
            table = rope_table(self.config, step.context)
            return WeightData(name, tensor("f32", *table.shape), _bytes(table))
        stored = self.tensors[name]
        if len(stored.type.shape) == 1 and stored.type.format.name != "f32":
            values = dequantise(stored.data, stored.type)
            return WeightData(name, tensor("f32", *values.shape), _bytes(values))
        return stored

    def release(self, name: str) -> None:
        """The data of a weight was copied: its pages of the file need not stay in memory."""
        if name in self.tensors:
            self.tensors[name].release()

    def graph(self, step: Step) -> Graph:
        """The graph of one step of this model."""
        config = self.config
        graph = GraphBuilder(f"{self.family.architecture}_step", step.activations)
        token = graph.input("token", tensor("i32", step.tokens))
        graph.input("pos", tensor("i32", 1))
        build = LayerBuilder(graph, self, step)
        embedding = build.weight("token_embd", config.vocab, config.width)
        graph.weight("rope.table", tensor("f32", step.context, config.head_dim))
        x = graph.op("embed", token, embedding, to="x")
        for i in range(config.layers):
            with build.layer(i):
                x = self.family.layer(build, config, x)
        if not step.head:
            return graph.build((x,))
        x = build.norm(x, "output_norm")
        head = self.head_weight.removesuffix(".weight")
        logits = build.linear(x, head, config.vocab, to="logits")
        ring = graph.state("ring", tensor("i32", step.context + 1))
        control = graph.state("control", tensor("control", 1))
        following = graph.op("sample", logits, ring, "pos", control, to="next")
        done = graph.op("emit", following, ring, "pos", control, to="done")
        next_pos = graph.op("advance", "pos", to="pos.next")
        return graph.build(
            (logits, following, done), ((following, token), (next_pos, "pos")), until=done
        )


def is_gguf(file: ModelFile) -> bool:
    return "general.architecture" in file.metadata


def _check(file: ModelFile, config: Config) -> None:
    """Raise `ModelFileError` where the numbers cannot be those of a decoder."""
    for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"):
        if getattr(config, name) < 1:
            raise ModelFileError(
                f"{file.path} says {name} = {getattr(config, name)}, which must be at least 1; "
                "the file is damaged, download it again."
            )
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ModelFileError(
            f"{file.path} has {config.heads} heads of {config.head_dim} over {config.kv_heads} "
            "key-value heads, which do not divide; the file is damaged, download it again."
        )
    if config.layers > len(file.tensors):
        raise ModelFileError(
            f"{file.path} says it has {config.layers} layers, but holds {len(file.tensors)} "
            "tensors; the file is incomplete, download it again."
        )


def _named(file: ModelFile, family: Family, layers: int) -> dict[str, WeightData]:
    """Tensors by GGUF's names.

    Raises `UnsupportedError` for a tensor that the family does not use: a model with one is not
    the model that hotloop would compute.
    """
    names = {}
    for theirs, ours in family.hf_names.items():
        for i in range(layers) if "{i}" in theirs else (0,):
            name = ours.format(i=i)
            names[name if is_gguf(file) else theirs.format(i=i)] = name
    if is_gguf(file):
        names.update((name, name) for name in family.gguf_only)
    unknown = next((name for name in file.tensors if name not in names), None)
    if unknown is not None:
        known = family.hf_names.values() if is_gguf(file) else family.hf_names
        raise UnsupportedError(
            f"{file.path}: {family.architecture} models have no tensor {unknown}; hotloop knows "
            f"{', '.join(known)}."
        )
    return {names[name]: weight for name, weight in file.tensors.items()}


def rope_table(config: Config, context: int) -> np.ndarray:
    """f32[context, head_dim]: cos, then sin, of position × frequency, computed in float64.

    Frequency i is theta^(-2i / head_dim) over its scale (Su et al., 2021, arXiv 2104.09864).
    """
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    frequencies = config.rope_theta**-exponents
    if config.rope_scales is not None:
        frequencies = frequencies / np.array(config.rope_scales)
    angles = np.outer(np.arange(context), frequencies)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)
