"""Decoder: what all families share, from a model file to the graph of one step.

A family file says how its config is read, how its tensors are called, and what one layer does; the
rest is here: embedding, the stack of layers, final norm, LM head, sampling. Tensors go by GGUF's
names everywhere; a family maps the names of Hugging Face to them.

State of a step, besides the KV cache of each layer, for each sequence: `ring`, its tokens by
position (prompt and output, with room for the context and one more), and `control`, its sampling
parameters and the mailbox of the launch (`hotloop.ir.types.CONTROL`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hotloop.frontends.column_order import SUFFIX, is_order, share_orders
from hotloop.frontends.config import Config, Fields
from hotloop.frontends.experts import prepare_experts
from hotloop.frontends.layer import LayerBuilder, Step
from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.frontends.rope import ROPE_TENSORS
from hotloop.frontends.weights import Tensors, fold_orders
from hotloop.ir.builder import GraphBuilder
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Attr, Graph
from hotloop.ir.types import TensorType, tensor
from hotloop.util.errors import ModelFileError, UnsupportedError

__all__ = ["Decoder", "Family", "LayerBuilder", "Step"]


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
    orders: Mapping[str, str] = field(default_factory=dict)
    """Linear layers whose columns are in an order of their own → the tensor that has it."""

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
        fold_orders(tensors, config.layers)
        made = Decoder(file, family, config, tensors, orders=share_orders(tensors))
        made._check()
        return made

    def _check(self) -> None:
        for key, name in _BIASES.items():
            said, held = self.file.metadata.get(key), name in self.tensors
            if said is not None and bool(said) != held:
                raise ModelFileError(
                    f"{self.file.path} says {key} is {said!r:.40}, but "
                    f"{'holds' if held else 'lacks'} the tensor {name}; check the config.json."
                )
        read = {weight.name for weight in self.graph(Step(context=16)).weights}
        unread = next((name for name in self.tensors if name not in read), None)
        if unread is not None and is_order(unread, self.tensors[unread]):
            raise UnsupportedError(
                f"{self.file.path} has {unread.removesuffix(SUFFIX)} quantised in the order of "
                "activations (desc_act), which hotloop does not read of such layers; use a file "
                "made with desc_act false, or a GGUF file."
            )
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

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self.tensors

    def tensor_type(self, name: str, shape: tuple[int, ...]) -> TensorType:
        """The type that graph value `name` has: as stored, but vectors of floats are float32."""
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
        return tensor("f32", *shape) if len(shape) == 1 and not name.endswith(SUFFIX) else type

    def weight(self, name: str, step: Step) -> WeightData:
        """The data of a weight that `graph(step)` declares."""
        if name == "rope.table":
            tables = [rope.table(step.context) for rope in self.config.ropes]
            table = np.concatenate(tables)
            return WeightData(name, tensor("f32", *table.shape), _bytes(table))
        stored = self.tensors[name]
        if len(stored.type.shape) == 1 and self.tensor_type(name, stored.type.shape) != stored.type:
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
        x = build.norm(x, "output_norm")
        if not step.head:
            return graph.build((x,))
        logits = self._logits(build, x)
        if not step.generates:
            return graph.build((logits,))
        ring = graph.state("ring", tensor("i32", step.sequences, step.context + 1))
        control = graph.state("control", tensor("control", step.sequences))
        bias = []
        if step.batch:
            bias = [graph.state("bias", tensor("f32", step.sequences, config.vocab))]
        following = graph.op("sample", logits, ring, "pos", control, *bias, to="next")
        if step.speculates:
            return self._checked(graph, logits, following)
        done = graph.op("emit", following, ring, "pos", control, to="done")
        next_pos = graph.op("advance", "pos", to="pos.next")
        return graph.build(
            (logits, following, done), ((following, token), (next_pos, "pos")), until=done
        )

    @staticmethod
    def _checked(graph: GraphBuilder, logits: str, sampled: str) -> Graph:
        """The end of a step that speculates: which guesses were right, and the next ones."""
        done = graph.op("accept", sampled, "token", "ring", "pos", "control", to="done")
        pos = graph.op("reached", "control", to="pos.next")
        tokens = graph.types["token"].shape[0]
        token = graph.op("draft", pos, "ring", "control", to="token.next", tokens=tokens)
        count = graph.op("filled", token, to="count")
        return graph.build(
            (logits, sampled, done, count),
            ((token, "token"), (pos, "pos")),
            until=done,
            count=count,
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
