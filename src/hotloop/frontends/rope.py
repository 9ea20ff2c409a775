"""Rope: the angles by which a layer turns its queries and keys, and how files say them.

Hugging Face has a section `rope_parameters`, or, older, `rope_scaling` beside `rope_theta`; GGUF
has `rope.freq_base`, `rope.scaling.…` and tensors of divisors. Both become a section in the words
of the former, so that there is one place where each rule is applied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief  # what a file says may be long
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends import rope_scaling
from hotloop.frontends.model_file import ModelFile
from hotloop.ir.formats import dequantise
from hotloop.util.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from hotloop.frontends.config import Fields

SUPPORTED = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
#: GGUF's tensors of divisors, which are read here.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_ALIASES = {"none": "default", "su": "longrope"}


@dataclass(frozen=True)
class Rope:
    """Position p turns pair i by p × `frequencies`[i]; cos and sin are multiplied by `factor`.

    A context of more than `original` positions takes the frequencies `long` instead, where given.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    long: tuple[float, ...] = ()
    original: int = 0

    @property
    def dims(self) -> int:
        """Elements of a head that turn."""
        return 2 * len(self.frequencies)

    def table(self, context: int) -> NDArray[np.float32]:
        """f32[context, dims]: cos, then sin, of each position's angles, computed in float64."""
        stretched = self.long and context > self.original
        frequencies = self.long if stretched else self.frequencies
        angles = np.outer(np.arange(context), frequencies)
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        return np.asarray(both * self.factor, dtype=np.float32)


def no_rope(dims: int) -> Rope:
    """Angles of zero: a layer without RoPE is a layer like the others, that turns by nothing."""
    return Rope((0.0,) * (dims // 2))


def base_frequencies(theta: float, dims: int) -> NDArray[np.float64]:
    """theta^(-2i / dims) (Su et al., 2021, arXiv 2104.09864)."""
    return np.asarray(theta ** -(np.arange(0, dims, 2) / dims), dtype=np.float64)


def read_rope(
    fields: "Fields",
    dims: int,
    context: int,
    *,
    kind: str = "",
    theta: float | None = None,
    truncate: bool = True,
) -> Rope:
    """The angles that a model's file asks for, with `dims` elements of a head turning.

    `kind` picks the section of one kind of layers where a file has one for each; where it has not,
    they turn by the base `theta`, unscaled, if it is given. `truncate` is yarn's, where the file
    doesn't say.
    """
    none: dict[str, Any] = {}
    own = fields.get("", "rope_parameters", dict, none).get(kind)
    if theta is not None and not isinstance(own, dict):
        return Rope(tuple(base_frequencies(theta, dims).tolist()))
    section = _gguf_section(fields) if fields.gguf else _hf_section(fields, own)
    section = {"truncate": truncate, **section}
    base = section["rope_theta"]
    if not isinstance(base, int | float) or not base > 1:
        raise ModelFileError(
            f"{fields.file.path}: RoPE's base is {brief(base)}, which must be more than 1; "
            "check the model's config."
        )
    return scaled_rope(fields.file, section, dims, float(base), context)


def scaled_rope(
    file: ModelFile, section: Mapping[str, Any], dims: int, theta: float, context: int
) -> Rope:
    """The angles of one section.

    `dynamic` scaling starts beyond the context that the config says, which is as far as we go.
    """
    kind = str(section.get("rope_type") or section.get("type") or "default")  # a file says anything
    kind = _ALIASES.get(kind, kind)
    base = base_frequencies(theta, dims)

    def number(key: str) -> float:
        return _number(file, section, key)

    def optional(key: str, default: float) -> float:
        return default if section.get(key) is None else number(key)

    factor = 1.0
    if kind == "linear":
        base = base / number("factor")
    elif kind == "llama3":
        base = rope_scaling.llama3(
            base,
            factor=number("factor"),
            low=number("low_freq_factor"),
            high=number("high_freq_factor"),
            original=number("original_max_position_embeddings"),
        )
    elif kind == "yarn":
        original, stretch = _stretch(file, section, context)
        base = rope_scaling.yarn(
            base,
            theta,
            factor=stretch,
            original=original,
            beta_fast=optional("beta_fast", 32.0),
            beta_slow=optional("beta_slow", 1.0),
            truncate=bool(section.get("truncate", True)),
        )
        factor = optional("attention_factor", _yarn_factor(stretch, section))
    elif kind == "longrope":
        short, long = (
            base / _divisors(file, section, key, dims) for key in ("short_factor", "long_factor")
        )
        original, stretch = _stretch(file, section, context)
        usual = rope_scaling.longrope_attention_factor(stretch, original)
        factor = optional("attention_factor", usual)
        return Rope(tuple(short.tolist()), factor, tuple(long.tolist()), int(original))
    elif kind == "divisors":
        base = base / _divisors(file, section, kind, dims)
    elif kind not in SUPPORTED:
        raise UnsupportedError(
            f"{file.path} scales RoPE by {brief(kind)}; hotloop knows {', '.join(SUPPORTED)}."
        )
    return Rope(tuple(base.tolist()), factor)


def _stretch(file: ModelFile, section: Mapping[str, Any], context: int) -> tuple[float, float]:
    """The context that the model was trained for first, and how many times as long it is now."""
    if section.get("original_max_position_embeddings") is None:
        return float(context), _number(file, section, "factor")
    original = _number(file, section, "original_max_position_embeddings")
    given = section.get("factor") is not None
    return original, _number(file, section, "factor") if given else context / original


def _yarn_factor(stretch: float, section: Mapping[str, Any]) -> float:
    """Of cos and sin; DeepSeek divides by what it has put into the scale of attention already."""
    whole, part = section.get("mscale"), section.get("mscale_all_dim")
    attention = rope_scaling.yarn_attention_factor
    if whole and part:
        return attention(stretch, whole) / attention(stretch, part)
    return attention(stretch)


def _hf_section(fields: "Fields", own: Mapping[str, Any] | None) -> dict[str, Any]:
    """The section, or `own`; keys that stand beside it in the older layout are added."""
    file = fields.file
    none: dict[str, Any] = {}
    section = own or file.optional("rope_parameters", dict, None)
    section = section or file.optional("rope_scaling", dict, none)
    older = file.optional("rotary_emb_base", float, 10000.0)  # GPT-NeoX's
    beside = {
        "rope_theta": file.optional("rope_theta", float, older),
        "original_max_position_embeddings": file.metadata.get("original_max_position_embeddings"),
    }
    return {**beside, **{key: value for key, value in section.items() if value is not None}}


def _gguf_section(fields: "Fields") -> dict[str, Any]:
    """GGUF's keys in the words of Hugging Face."""
    tensors = fields.file.tensors

    def values(name: str) -> NDArray[np.float32]:
        return dequantise(tensors[name].data, tensors[name].type).reshape(-1)

    def number(key: str) -> float | None:
        return fields.get(f"rope.{key}", "", float, None)

    section: dict[str, Any] = {
        "rope_theta": fields.get("rope.freq_base", "", float, 10000.0),
        "rope_type": fields.get("rope.scaling.type", "", str, "default"),
        "factor": number("scaling.factor"),
        "original_max_position_embeddings": number("scaling.original_context_length"),
        "beta_fast": number("scaling.yarn_beta_fast"),
        "beta_slow": number("scaling.yarn_beta_slow"),
    }
    extra = number("scaling.attn_factor")
    if "rope_factors_long.weight" in tensors:
        section |= {
            "rope_type": "longrope",
            "attention_factor": 1.0 if extra is None else extra,
            "short_factor": values("rope_factors_short.weight"),
            "long_factor": values("rope_factors_long.weight"),
        }
    elif "rope_freqs.weight" in tensors:
        section |= {"rope_type": "divisors", "divisors": values("rope_freqs.weight")}
    elif extra is not None and section["factor"] is not None:
        usual = rope_scaling.yarn_attention_factor(section["factor"])
        section["attention_factor"] = extra * usual
    return section


def _divisors(file: ModelFile, section: Mapping[str, Any], key: str, dims: int) -> Any:
    try:
        found = np.asarray(section.get(key), dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != (dims // 2,) or not (found > 0).all():
        raise ModelFileError(
            f"{file.path}: RoPE scaling needs {dims // 2} positive numbers in {key}; check the "
            "model's config."
        )
    return found


def _number(file: ModelFile, rope: Mapping[str, Any], key: str) -> float:
    value = rope.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ModelFileError(
            f"{file.path}: RoPE scaling needs a positive {key}, found {brief(value)}; "
            "check the model's config.json."
        )
    return float(value)
