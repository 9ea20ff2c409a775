"""Config: the numbers of a decoder, and how they are read from either dialect of metadata.

GGUF says `llama.block_count` where Hugging Face's `config.json` says `num_hidden_layers`. `Fields`
reads both by their two names; `read_config` reads what all families share, and a family's file
adds what is its own (`dataclasses.replace`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from reprlib import repr as brief  # what a file says may be long

from hotloop.frontends.model_file import D, ModelFile, T
from hotloop.frontends.rope import Rope, no_rope, read_rope
from hotloop.util.errors import ModelFileError, UnsupportedError


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` experts, `used` for each token: see the ops `route`, `route_weights`.

    `ffn` is the width of each; `shared` that of a net that every token goes through besides (0:
    there is none).
    """

    count: int
    used: int
    ffn: int
    shared: int = 0
    scoring: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True)
class Latent:
    """Latent attention: ranks of the vectors that queries, and keys and values, are made of.

    `q_rank` is 0 where queries are made of the stream itself. Of each head, `rope` elements turn,
    which all heads' keys have in common, and values have `value` elements.
    """

    q_rank: int
    kv_rank: int
    rope: int
    value: int


@dataclass(frozen=True)
class Config:
    """The numbers of a decoder.

    Layers may differ in what `windows` and `rope_of` say, and in nothing else.
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
    pairing: str
    """Which elements of a head rotate together: see the op `rope`."""
    ropes: tuple[Rope, ...] = ()
    """The angles of RoPE; more than one kind where layers differ."""
    rope_of: tuple[int, ...] = ()
    """For each layer, which of `ropes` turns its queries and keys."""
    windows: tuple[int, ...] = ()
    """For each layer, how many positions a token sees, itself included; 0: all before it."""
    attention_scale: float = 1.0
    attention_softcap: float = 0.0
    """Scores s become cap · tanh(s / cap); 0: they stay. So for logits."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Of what attention and feed-forward net add to the residual stream."""
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    norm: str = "rms_norm"
    experts: Experts | None = None
    latent: Latent | None = None
    parallel: bool = False
    """Whether the feed-forward net reads what attention reads, not what it leaves."""


@dataclass(frozen=True)
class Fields:
    """The metadata of a model file, by GGUF's key (without the architecture) or Hugging Face's.

    An empty key is one that the dialect doesn't have.
    """

    file: ModelFile

    @property
    def gguf(self) -> bool:
        return "general.architecture" in self.file.metadata

    def need(self, gguf: str, hf: str, kind: type[T]) -> T:
        """Raises `ModelFileError` where the key is missing or of another kind."""
        return self.file.require(self._key(gguf, hf), kind)

    def get(self, gguf: str, hf: str, kind: type[T], default: D) -> T | D:
        return self.file.optional(self._key(gguf, hf), kind, default)

    def _key(self, gguf: str, hf: str) -> str:
        if not self.gguf:
            return hf
        return f"{self.file.architecture}.{gguf}" if gguf else ""

    def expect(self, **values: object) -> None:
        """Raise `UnsupportedError` where a Hugging Face key has another than the given value."""
        for key, wanted in {} if self.gguf else values.items():
            if (found := self.file.metadata.get(key, wanted)) != wanted:
                raise UnsupportedError(
                    f"{self.file.path}: {key} is {brief(found)}, not {wanted!r}."
                )


def read_config(
    fields: Fields,
    *,
    pairing: str,
    eps: tuple[str, str] = ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    rotated: float = 1.0,
    truncate: bool = True,
) -> Config:
    """What all families share; all layers turn by the same angles and see all positions.

    `eps` are the keys of the norms' epsilon, `rotated` is the share of a head that RoPE turns
    where a Hugging Face config doesn't say, and `truncate` is `read_rope`'s.
    """
    file = fields.file
    width = fields.need("embedding_length", "hidden_size", int)
    heads = fields.need("attention.head_count", "num_attention_heads", int)
    config = Config(
        layers=fields.need("block_count", "num_hidden_layers", int),
        width=width,
        heads=heads,
        kv_heads=fields.get("attention.head_count_kv", "num_key_value_heads", int, heads),
        head_dim=fields.get("attention.key_length", "head_dim", int, width // max(1, heads)),
        ffn=fields.need("feed_forward_length", "intermediate_size", int),
        vocab=_embedded(file) if fields.gguf else fields.need("", "vocab_size", int),
        context=fields.need("context_length", "max_position_embeddings", int),
        eps=fields.need(*eps, float),
        pairing=pairing,
    )
    _check(file, config)
    share = _hf_share(fields, rotated)
    turned = fields.get("rope.dimension_count", "", int, int(config.head_dim * share))
    if not 0 < turned <= config.head_dim or turned % 2:
        raise ModelFileError(
            f"{file.path} turns {turned} elements of heads of {config.head_dim}; the file is "
            "damaged, download it again."
        )
    return replace(
        config,
        ropes=(read_rope(fields, turned, config.context, truncate=truncate),),
        rope_of=(0,) * config.layers,
        windows=(0,) * config.layers,
        attention_scale=config.head_dim**-0.5,
    )


def _embedded(file: ModelFile) -> int:
    """Rows of the embedding; 0, which no config may have, where it is missing or has none."""
    weight = file.tensors.get("token_embd.weight")
    return weight.type.shape[0] if weight else 0


def _hf_share(fields: Fields, usual: float) -> float:
    """The share of a head that turns: `partial_rotary_factor`, in the section or beside it.

    GPT-NeoX's older name is `rotary_pct`.
    """
    none: dict[str, object] = {}
    share = fields.get("", "rope_parameters", dict, none).get("partial_rotary_factor")
    if isinstance(share, int | float):
        return float(share)
    older = fields.get("", "rotary_pct", float, usual)
    return fields.get("", "partial_rotary_factor", float, older)


#: Far beyond any model's, and the angles of RoPE still take little memory.
_WIDEST_HEAD = 1 << 16


def _check(file: ModelFile, config: Config) -> None:
    """Raise `ModelFileError` where the numbers cannot be those of a decoder."""
    for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"):
        if getattr(config, name) < 1:
            raise ModelFileError(
                f"{file.path} says {name} = {getattr(config, name)}, which must be at least 1; "
                "the file is damaged, download it again."
            )
    if config.head_dim > _WIDEST_HEAD:
        raise ModelFileError(
            f"{file.path} has heads of {config.head_dim} elements, which no model has; the file is "
            "damaged, download it again."
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


def read_experts(
    fields: Fields,
    *,
    count: str = "num_local_experts",
    ffn: str = "moe_intermediate_size",
    normalise: bool = True,
) -> Experts:
    """What all mixtures of experts share; `count` and `ffn` are Hugging Face's keys.

    `normalise` says whether the chosen experts' weights sum to 1, where the file doesn't say.
    """
    ffn_key = ("feed_forward_length", ffn) if ffn == "intermediate_size" else (_EXPERT_FFN, ffn)
    experts = Experts(
        count=fields.need("expert_count", count, int),
        used=fields.need("expert_used_count", "num_experts_per_tok", int),
        ffn=fields.need(*ffn_key, int),
        normalise=fields.get("expert_weights_norm", "norm_topk_prob", bool, normalise),
        scale=fields.get("expert_weights_scale", "routed_scaling_factor", float, 1.0),
    )
    if not (0 < experts.used <= experts.count and experts.ffn > 0):
        raise ModelFileError(
            f"{fields.file.path} uses {experts.used} of {experts.count} experts of width "
            f"{experts.ffn}; the file is damaged, download it again."
        )
    return experts


_EXPERT_FFN = "expert_feed_forward_length"


def with_ropes(config: Config, turned: Sequence[bool]) -> Config:
    """The config with layers that are not `turned` turning by nothing."""
    if all(turned):
        return config
    ropes = (*config.ropes, no_rope(config.ropes[0].dims))
    return replace(config, ropes=ropes, rope_of=tuple(0 if one else 1 for one in turned))


def late_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Qwen's: windows from layer `max_window_layers` on, if there are to be any."""
    if not fields.get("", "use_sliding_window", bool, False):
        return (0,) * layers
    first = fields.get("", "max_window_layers", int, layers)
    types = fields.get("", "layer_types", list, None)
    late = [i >= first for i in range(layers)]
    return windows_of(fields, late if types is None else local_layers(fields, layers, 0))


def local_layers(fields: Fields, layers: int, period: int) -> tuple[bool, ...]:
    """For each layer, whether it sees a window only.

    `layer_types` says it, or a GGUF file a truth value for each; else the last of every
    `sliding_window_pattern` layers sees all, else the last of every `period`; with a period of 0,
    none does.
    """
    types = fields.get("", "layer_types", list, None)
    each = fields.file.metadata.get(f"{fields.file.architecture}.attention.sliding_window_pattern")
    if fields.gguf and isinstance(each, list):
        types = ["sliding_attention" if one else "full_attention" for one in each]
    if types is not None:
        if len(types) != layers:
            raise ModelFileError(
                f"{fields.file.path} gives {len(types)} layer_types for {layers} layers; check the "
                "model's config.json."
            )
        return tuple(one == "sliding_attention" for one in types)
    found = fields.file.metadata.get("sliding_window_pattern")
    if isinstance(found, str):  # EXAONE 4 writes LLLG.
        return tuple(found[i % len(found)] == "L" for i in range(layers))
    pattern = fields.get("attention.sliding_window_pattern", "sliding_window_pattern", int, period)
    return tuple(not pattern or (i + 1) % pattern > 0 for i in range(layers))


def windows_of(fields: Fields, local: Sequence[bool]) -> tuple[int, ...]:
    """The window of each layer that is `local`; 0 for the others, and where the file has none."""
    window = fields.get("attention.sliding_window", "sliding_window", int, 0)
    return tuple(window if one else 0 for one in local)
