"""LayerBuilder: the words in which a family writes down what one layer does.

Tensors go by GGUF's names, without the layer's prefix. What the config says of all layers alike is
in here; what makes a family is in its own file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from hotloop.frontends.config import Config
from hotloop.frontends.experts import padded
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.graph import Attr
from hotloop.ir.ops import CHUNK, cache_type, chunk_count
from hotloop.ir.types import TensorType


class Tensors(Protocol):
    """What is known of a model's tensors: `decoder.Decoder`."""

    @property
    def config(self) -> Config: ...

    @property
    def orders(self) -> Mapping[str, str]: ...

    def has(self, name: str) -> bool: ...

    def tensor_type(self, name: str, shape: tuple[int, ...]) -> TensorType: ...


@dataclass(frozen=True)
class Step:
    """Which step to build: `tokens` at once, each sequence with up to `context` positions.

    The tokens follow each other in one sequence, or each belongs to its own (`batch`). Where a step
    `speculates`, all but the first are guesses that it checks. The caches have `cache_pages` pages
    for all sequences; None: as many as one sequence needs.

    `activations` is "q8" or "f32"; `kv_cache` is "f16", "f32", "q8" (8-bit codes, each head of a
    position with a scale), or None: float32 where the activations are, else float16. With `head`,
    the step ends with logits, and where tokens are generated, with sampled ones; else with the
    hidden states after the final norm (a prompt's inner blocks, and embeddings).
    """

    tokens: int = 1
    context: int = 2048
    activations: str = "q8"
    head: bool = True
    batch: bool = False
    speculates: bool = False
    cache_pages: int | None = None
    kv_cache: str | None = None

    @property
    def cache_format(self) -> str:
        """The format of the cache's elements."""
        plain = "f32" if self.activations == "f32" else "f16"
        return {None: plain, "q8": "i8"}.get(self.kv_cache, self.kv_cache or plain)

    @property
    def sequences(self) -> int:
        return self.tokens if self.batch else 1

    @property
    def generates(self) -> bool:
        """Whether it samples tokens, rather than reading those of a prompt."""
        return self.head and (self.speculates or self.tokens == self.sequences)

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

    def __init__(self, graph: GraphBuilder, decoder: Tensors, step: Step) -> None:
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
        return self.decoder.has(self.prefix + name)

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
        """x · Wᵀ with W = `name`.weight of `rows` rows, plus `name`.bias if the file has it.

        Where W's columns are in another order, x is gathered in that order.
        """
        columns = self.graph.types[x].shape[-1]
        weight = self.weight(f"{name}.weight", rows, columns)
        order = self.decoder.orders.get(self.prefix + name)
        if order is not None:
            type = self.decoder.tensor_type(order, (columns,))
            x = self.graph.gather(x, self.graph.weight(order, type))
        to = to or name
        if not self.has(f"{name}.bias"):
            return self.graph.linear(x, weight, to=to)
        y = self.graph.linear(x, weight, to=f"{to}.product")
        return self.graph.op("bias", y, self.weight(f"{name}.bias", rows), to=to)

    def qkv(self, x: str) -> tuple[str, str, str]:
        """Queries, keys and values."""
        config = self.decoder.config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return (
            self.linear(x, "attn_q", q, to="q"),
            self.linear(x, "attn_k", kv, to="k"),
            self.linear(x, "attn_v", kv, to="v"),
        )

    def rope(self, x: str, head_dim: int | None = None) -> str:
        """Queries or keys, of the config's heads or shorter ones, turned by their positions."""
        config = self.decoder.config
        return self.graph.op(
            "rope",
            x,
            "pos",
            "rope.table",
            to=f"{self._local(x)}.rope",
            head_dim=head_dim or config.head_dim,
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

        The keys of few tokens are split among the threads; a prompt has tokens enough to split.
        """
        config, graph = self.decoder.config, self.graph
        step, dim = self.step, config.head_dim
        cache = cache_type(step.cache_format, step.pages, config.kv_heads, step.page, dim)
        keys = graph.state(f"{self.prefix}keys", cache)
        values = graph.state(f"{self.prefix}values", cache)
        graph.op("store_keys", keys, k, "pos", "pages", head_dim=dim)
        graph.op("store_values", values, v, "pos", "pages", head_dim=dim)
        inputs = (q, keys, values, "pos", "pages")
        sinks = self.optional("attn_sinks.weight", config.heads)
        heads, window = config.heads, config.windows[self.number]
        how: dict[str, Attr] = {
            "heads": heads,
            "scale": config.attention_scale,
            "softcap": config.attention_softcap,
            "window": window,
        }
        if not step.generates:
            return graph.op("attention", *inputs, *sinks, to="attn", **how)
        chunks = graph.op("attend", *inputs, to="attn.chunks", **how)
        return graph.op(
            "combine", chunks, "pos", *sinks, to="attn", heads=heads, head_dim=dim, window=window
        )

    def op(self, name: str, *operands: str, to: str = "", **attrs: Attr) -> str:
        return self.graph.op(name, *operands, to=to, **attrs)

    def _local(self, name: str) -> str:
        """The name within this layer."""
        return name.removeprefix(self.prefix)
