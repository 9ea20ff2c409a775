"""Decoder: what all families share, from a model file to the graph of one step.

A family file says how its config is read, how its tensors are called, and what one layer does; the
rest is here: embedding, the stack of layers, final norm, LM head, sampling. Tensors go by GGUF's
names everywhere; a family maps the names of Hugging Face to them.

State of a step, besides the KV cache of each layer, for each sequence: `ring`, its tokens by
position (prompt and output, with room for the context and one more), and `control`, its sampling
parameters and the mailbox of the launch (`hotloop.ir.types.CONTROL`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hotloop.frontends.config import Config, Fields
from hotloop.frontends.experts import padded, prepare_experts
from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.frontends.rope import ROPE_TENSORS
from hotloop.frontends.weights import Tensors
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Attr, Graph
from hotloop.ir.ops import CHUNK, chunk_count
from hotloop.ir.types import TensorType, tensor
from hotloop.util.errors import ModelFileError, UnsupportedError


@dataclass(frozen=True)
class Step:
    """Which step to build: `tokens` at once, each sequence with up to `context` positions.

    The tokens follow each other in one sequence, or each belongs to its own (`batch`). The caches
    have `cache_pages` pages for all sequences; None: as many as one sequence needs.

    `activations` is "q8" or "f32"; with "f32" the KV cache is float32, too. With `head`, the step
    ends with logits, and where each sequence has one token, with a sampled token; else after the
    last layer (a prompt's inner blocks).
    """

    tokens: int = 1
    context: int = 2048
    activations: str = "q8"
    head: bool = True
    batch: bool = False
    cache_pages: int | None = None

    @property
    def sequences(self) -> int:
        return self.tokens if self.batch else 1

    @property
    def chunks(self) -> int:
        """Pages of a sequence, if it fills its context."""
        return chunk_count(self.context)

    @property
    def pages(self) -> int:
        """Pages of a cache, all sequences together."""
        return self.chunks if self.cache_pages is None else self.cache_pages

    @property
    def page(self) -> int:
        """Positions of a page; kernels want a multiple of 16."""
        return min(CHUNK, -(-self.context // 16) * 16)


class LayerBuilder:
    """What a family's layer function builds with: the ops of a layer, by the names of tensors."""

    def __init__(self, graph: GraphBuilder, decoder: "Decoder", step: Step) -> None:
        self.graph = graph
        self.decoder = decoder
        self.step = step
        self.prefix = ""
        self.number = 0

    @contextmanager
    def layer(self, i: int) -> Iterator[None]:
        self.prefix, self.number = f"blk.{i}.", i
        with self.graph.scope(f"blk.{i}"):
            yield
        self.prefix = ""

    def has(self, name: str) -> bool:
        """Whether the file has the tensor `name` of this layer."""
        return self.prefix + name in self.decoder.tensors

    def weight(self, name: str, *shape: int) -> str:
        """Declare the tensor `name` of this layer, which must have the given shape."""
        full = self.prefix + name
        return self.graph.weight(full, self.decoder.tensor_type(full, shape))

    def optional(self, name: str, *shape: int) -> list[str]:
        """The same, but nothing where the file doesn't have it."""
        return [self.weight(name, *shape)] if self.has(name) else []

    def norm(self, x: str, name: str) -> str:
        """The config's norm over a token's whole vector, with `name`.weight, and .bias if any."""
        config, width = self.decoder.config, self.graph.types[x].shape[-1]
        weight = self.weight(f"{name}.weight", width)
        bias = self.optional(f"{name}.bias", width) if config.norm == "layer_norm" else []
        return self.graph.op(config.norm, x, weight, *bias, to=name, eps=config.eps)

    def head_norm(self, x: str, name: str) -> str:
        """RMS norm of each head by itself."""
        config = self.decoder.config
        weight = self.weight(f"{name}.weight", config.head_dim)
        return self.graph.op(
            "head_norm",
            x,
            weight,
            to=f"{self._local(x)}.norm",
            eps=config.eps,
            head_dim=config.head_dim,
        )

    def linear(self, x: str, name: str, rows: int, to: str = "") -> str:
        """x · Wᵀ with W = `name`.weight of `rows` rows, plus `name`.bias if the file has it."""
        weight = self.weight(f"{name}.weight", rows, self.graph.types[x].shape[-1])
        y = self.graph.linear(x, weight, to=to or name)
        if not self.has(f"{name}.bias"):
            return y
        bias = self.weight(f"{name}.bias", rows)
        return self.graph.op("bias", y, bias, to=f"{self._local(y)}.biased")

    def qkv(self, x: str) -> tuple[str, str, str]:
        """Queries, keys and values."""
        config = self.decoder.config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return (
            self.linear(x, "attn_q", q, to="q"),
            self.linear(x, "attn_k", kv, to="k"),
            self.linear(x, "attn_v", kv, to="v"),
        )

    def rope(self, x: str) -> str:
        """Queries or keys turned by the angles of their positions."""
        config = self.decoder.config
        return self.graph.op(
            "rope",
            x,
            "pos",
            "rope.table",
            to=f"{self._local(x)}.rope",
            head_dim=config.head_dim,
            pairing=config.pairing,
            first_row=config.rope_of[self.number] * self.step.context,
        )

    def self_attention(self, x: str) -> str:
        """Queries, keys and values of x, turned; attention; and what it adds to the stream."""
        q, k, v = self.qkv(x)
        return self.attn_output(self.attention(self.rope(q), self.rope(k), v))

    def attn_output(self, attended: str) -> str:
        return self.linear(attended, "attn_output", self.decoder.config.width)

    def gated_ffn(self, x: str, activation: str = "swiglu", **attrs: Attr) -> str:
        """down(activation(gate(x), up(x))); `attrs` are the activation's."""
        config = self.decoder.config
        gate = self.linear(x, "ffn_gate", config.ffn)
        up = self.linear(x, "ffn_up", config.ffn)
        act = self.graph.op(activation, gate, up, to=activation, **attrs)
        return self.linear(act, "ffn_down", config.width)

    def ffn(self, x: str) -> str:
        """A mixture of experts where this layer has a router, else one net with SwiGLU."""
        return self.experts(x) if self.has("ffn_gate_inp.weight") else self.gated_ffn(x)

    def experts(self, x: str, activation: str = "swiglu", **attrs: Attr) -> str:
        """The chosen experts' nets, weighted, and the net that all tokens share, if any."""
        width, experts = self.decoder.config.width, self.decoder.config.experts
        assert experts is not None
        logits = self.linear(x, "ffn_gate_inp", experts.count)
        ids, weights = self.graph.route(
            logits,
            experts.used,
            *self.optional("exp_probs_b.bias", experts.count),
            scoring=experts.scoring,
            groups=experts.groups,
            top_groups=experts.top_groups,
            group_best=experts.group_best,
            normalise=experts.normalise,
            scale=experts.scale,
        )
        rows = padded(experts.ffn)

        def parts(name: str, rows: int, columns: int) -> list[str]:
            """The weight, and the bias if there is one."""
            weight = self.weight(f"{name}.weight", experts.count, rows, columns)
            return [weight, *self.optional(f"{name}.bias", experts.count, rows)]

        def product(name: str) -> str:
            weight, *bias = parts(name, rows, width)
            return self.graph.expert_linear(x, weight, ids, *bias, to=name)

        gate, up = product("ffn_gate_exps"), product("ffn_up_exps")
        act = self.graph.op(activation, gate, up, to=activation, **attrs)
        down, *biases = parts("ffn_down_exps", width, rows)
        y = self.graph.expert_mix(act, down, ids, weights, *biases, to="ffn_down_exps")
        return self.op("add", y, self.shared_expert(x), to="ffn") if experts.shared else y

    def shared_expert(self, x: str) -> str:
        """The net of every token; some models scale it by the sigmoid of a router of its own."""
        config = self.decoder.config
        assert config.experts is not None
        gate, up = (
            self.linear(x, f"ffn_{part}_shexp", config.experts.shared) for part in ("gate", "up")
        )
        y = self.linear(self.op("swiglu", gate, up), "ffn_down_shexp", config.width)
        if not self.has("ffn_gate_inp_shexp.weight"):
            return y
        return self.op("gated", y, self.linear(x, "ffn_gate_inp_shexp", 1), to="shared")

    def plain_ffn(self, x: str, form: str) -> str:
        """down(gelu(up(x))), with gelu's `form`."""
        config = self.decoder.config
        up = self.linear(x, "ffn_up", config.ffn)
        return self.linear(self.op("gelu", up, form=form), "ffn_down", config.width)

    def add(self, x: str, more: str, to: str) -> str:
        """x + the residual scale × more."""
        scale = self.decoder.config.residual_scale
        return self.op("add", x, self.scaled(more, scale), to=to)

    def scaled(self, x: str, factor: float) -> str:
        if factor == 1.0:
            return x
        return self.op("scale", x, to=f"{self._local(x)}.scaled", factor=factor)

    def attention(self, q: str, k: str, v: str) -> str:
        """Append k and v to this layer's cache and attend over all of it.

        The keys of a sequence's only token are split among the threads; a prompt has tokens enough
        to split.
        """
        config, graph = self.decoder.config, self.graph
        kind = "f32" if self.step.activations == "f32" else "f16"
        step, dim = self.step, config.head_dim
        cache = tensor(kind, step.pages, config.kv_heads, step.page, dim)
        keys = graph.state(f"{self.prefix}keys", cache)
        values = graph.state(f"{self.prefix}values", cache)
        graph.op("store_keys", keys, k, "pos", "pages", head_dim=dim)
        graph.op("store_values", values, v, "pos", "pages", head_dim=dim)
        if config.windows[self.number] or config.attention_softcap:
            raise UnsupportedError("windows and caps of attention are not there yet.")
        heads, scale = config.heads, config.attention_scale
        inputs = (q, keys, values, "pos", "pages")
        if step.tokens > step.sequences:
            return graph.op("attention", *inputs, to="attn", heads=heads, scale=scale)
        partials = graph.op("attend", *inputs, to="attn.chunks", heads=heads, scale=scale)
        return graph.op("combine", partials, "pos", to="attn", heads=heads, head_dim=dim)

    def op(self, name: str, *operands: str, to: str = "", **attrs: Attr) -> str:
        return self.graph.op(name, *operands, to=to, **attrs)

    def _local(self, name: str) -> str:
        """The name within this layer."""
        return name.removeprefix(self.prefix)


def _as_they_are(tensors: Tensors, config: Config, gguf: bool) -> None:
    """The adaptation of families whose tensors need none."""


@dataclass(frozen=True)
class Family:
    """One family of models: what its short file in `models/` exports.

    `names` are those of its architectures, in GGUF files and Hugging Face's. `hf_names` maps
    modules of Hugging Face to GGUF's (`hotloop.frontends.names`). Where that is not enough, `adapt`
    changes the tensors, under GGUF's names by then, to what `layer` builds with; it is told whether
    they come from a GGUF file. Tensors whose names end as one of `unread` does are no weights.
    """

    names: tuple[str, ...]
    config: Callable[[Fields], Config]
    layer: Callable[[LayerBuilder, Config, str], str]
    hf_names: Mapping[str, str]
    adapt: Callable[[Tensors, Config, bool], None] = _as_they_are
    unread: tuple[str, ...] = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model file together with its family: builds graphs and finds their weights."""

    file: ModelFile
    family: Family
    config: Config
    tensors: Mapping[str, WeightData]
    quantised: str | None = None
    """The format that matrices were quantised to when the model was loaded."""

    @staticmethod
    def of(file: ModelFile, family: Family) -> "Decoder":
        """The model in `file`.

        Raises `ModelFileError` where tensors and config disagree, and `UnsupportedError` where
        there is a tensor that no op reads: that is another model than hotloop would compute.
        """
        fields = Fields(file)
        config = family.config(fields)
        tensors = _named(file, family, config)
        family.adapt(tensors, config, fields.gguf)
        if config.experts:
            prepare_experts(tensors, config.layers, config.experts)
        made = Decoder(file, family, config, tensors)
        made._check()
        return made

    def _check(self) -> None:
        for key, name in _BIASES.items():
            said, held = self.file.metadata.get(key), name in self.tensors
            if said is not None and bool(said) != held:
                raise ModelFileError(
                    f"{self.file.path} says {key} is {said}, but "
                    f"{'holds' if held else 'lacks'} the tensor {name}; check the config.json."
                )
        read = {weight.name for weight in self.graph(Step(context=16)).weights}
        unread = next((name for name in self.tensors if name not in read), None)
        if unread is not None:
            raise UnsupportedError(
                f"{self.file.path} holds the tensor {unread}, which hotloop's {self.name} does not "
                "use: this is another kind of model."
            )

    @property
    def name(self) -> str:
        """The family's."""
        return self.family.names[0]

    @property
    def head_weight(self) -> str:
        """The LM head's tensor: the embedding's where the two are tied."""
        tied = self.file.metadata.get("tie_word_embeddings") is not False
        return "token_embd" if tied and "output.weight" not in self.tensors else "output"

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a generation, by the metadata alone."""
        key = "tokenizer.ggml.eos_token_id" if Fields(self.file).gguf else "eos_token_id"
        named = self.file.metadata.get(key)
        ids = named if isinstance(named, list | tuple) else [named]
        return tuple(token for token in ids if isinstance(token, int))

    def tensor_type(self, name: str, shape: tuple[int, ...]) -> TensorType:
        """The type that graph value `name` has: as stored, but vectors become float32."""
        if name not in self.tensors:
            raise ModelFileError(
                f"{self.file.path} has no tensor {name}, which {self.name} models "
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
            tables = [rope.table(step.context) for rope in self.config.ropes]
            table = np.concatenate(tables)
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
        graph = GraphBuilder(f"{self.name}_step", step.activations)
        token = graph.input("token", tensor("i32", step.tokens))
        graph.input("pos", tensor("i32", step.sequences))
        graph.input("pages", tensor("i32", step.sequences, step.chunks))
        build = LayerBuilder(graph, self, step)
        embedding = build.weight("token_embd.weight", config.vocab, config.width)
        rows = len(config.ropes) * step.context
        graph.weight("rope.table", tensor("f32", rows, config.ropes[0].dims))
        x = build.scaled(graph.op("embed", token, embedding, to="x"), config.embedding_scale)
        for i in range(config.layers):
            with build.layer(i):
                x = self.family.layer(build, config, x)
        if not step.head:
            return graph.build((x,))
        x = build.norm(x, "output_norm")
        logits = self._logits(build, x)
        if step.tokens > step.sequences:
            return graph.build((logits,))
        ring = graph.state("ring", tensor("i32", step.sequences, step.context + 1))
        control = graph.state("control", tensor("control", step.sequences))
        bias = []
        if step.batch:
            bias = [graph.state("bias", tensor("f32", step.sequences, config.vocab))]
        following = graph.op("sample", logits, ring, "pos", control, *bias, to="next")
        done = graph.op("emit", following, ring, "pos", control, to="done")
        next_pos = graph.op("advance", "pos", to="pos.next")
        return graph.build(
            (logits, following, done), ((following, token), (next_pos, "pos")), until=done
        )

    def _logits(self, build: LayerBuilder, x: str) -> str:
        scale, cap = self.config.logit_scale, self.config.logit_softcap
        changes: list[tuple[str, dict[str, Attr]]] = []
        if scale != 1.0:
            changes.append(("scale", {"factor": scale}))
        if cap:
            changes.append(("softcap", {"cap": cap}))
        x = build.linear(x, self.head_weight, self.config.vocab, "head" if changes else "logits")
        for i, (op, attrs) in enumerate(changes):
            x = build.op(op, x, to="logits" if i == len(changes) - 1 else "head.scaled", **attrs)
        return x


#: What a config.json says of biases, and a tensor that shows it.
_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"}


def _named(file: ModelFile, family: Family, config: Config) -> dict[str, WeightData]:
    """Tensors by GGUF's names, but those that are no weights of layers."""
    experts = range(config.experts.count if config.experts else 0)
    modules = {
        theirs.format(i=i, e=e): ours.format(i=i, e=e)
        for theirs, ours in family.hf_names.items()
        for i in (range(config.layers) if "{i}" in theirs else (0,))
        for e in (experts if "{e}" in theirs else (0,))
    }
    unread = (*family.unread, *ROPE_TENSORS)
    named = {}
    for name, weight in file.tensors.items():
        if not name.endswith(unread):
            module, _, kind = name.rpartition(".")
            ours = name if Fields(file).gguf else f"{modules.get(module, module)}.{kind}"
            named[ours] = weight
    return named


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)
