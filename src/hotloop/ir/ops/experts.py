"""route, route_weights, expert_linear, expert_mix: a mixture of experts (MoE).

    logits = linear(h, router)                            f32[T,E]
    ids = route(logits)                                   i32[T,S], the experts of S slots
    weights = route_weights(logits, ids)                  f32[T,S]
    act = swiglu(expert_linear(h, gate, ids), expert_linear(h, up, ids))      f32[T,S·F]
    y = expert_mix(act, down, ids, weights)               f32[T,N]

Of a weight [E, rows, columns] only the chosen experts' rows are read. Slots are in the order of
their scores, best first, ties by lower id; that order is also the one in which they are summed.
"""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.approx import exp
from hotloop.ir.ops.base import GROUP, Array, Attrs, OpDef, activation, need, one
from hotloop.ir.types import TensorType, tensor

SCORINGS = ("softmax", "sigmoid")

NORM_FLOOR = 1e-20
"""Added to a sum of sigmoids that others are divided by, as DeepSeek-V3's code does."""


def _infer_route(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits, *bias = types
    tokens, experts = activation(logits, "the logits")
    top, groups, top_groups = (int(attrs[name]) for name in ("top", "groups", "top_groups"))
    need(groups >= 1 and experts % groups == 0, f"{experts} experts are not {groups} equal groups")
    need(1 <= top_groups <= groups, f"{top_groups} of {groups} groups cannot be chosen")
    eligible = experts // groups * top_groups
    need(1 <= top <= eligible, f"{top} of {eligible} experts cannot be chosen")
    need(attrs["group_best"] in (1, 2), f"group_best must be 1 or 2, not {attrs['group_best']}")
    _scoring(attrs)
    if attrs["scoring"] == "softmax":
        need(not bias and attrs["group_best"] == 1, "softmax takes neither a bias nor group_best=2")
    for type in bias:
        need(type == tensor("f32", experts), f"the bias must be f32[{experts}], not {type}")
    need(len(bias) < 2, f"{len(types)} operands, expected logits and perhaps a bias")
    return tensor("i32", tokens, top)


def _scoring(attrs: Attrs) -> None:
    need(attrs["scoring"] in SCORINGS, f"scoring is one of {SCORINGS}, not {attrs['scoring']}")


def _route(
    logits: Array,
    *bias: Array,
    top: int,
    scoring: str,
    groups: int,
    top_groups: int,
    group_best: int,
) -> Array:
    """The `top` experts with the greatest scores.

    Scores are the logits (which softmax would not reorder), or sigmoid(logit) plus the bias, if
    there is one. With `groups`, only the `top_groups` groups of neighbouring experts are eligible
    whose `group_best` best scores have the greatest sum (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
    """
    scores = 1 / (1 + exp(-logits)) if scoring == "sigmoid" else logits
    for each in bias:
        scores = scores + each
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if groups > 1:
        grouped = scores.reshape(len(scores), groups, -1)
        best = np.sort(grouped, axis=-1)[..., : -group_best - 1 : -1].sum(axis=-1)
        chosen = np.argsort(-best, axis=-1, kind="stable")[:, :top_groups]
        eligible = np.zeros(best.shape, bool)
        np.put_along_axis(eligible, chosen, True, axis=-1)
        scores = np.where(eligible[..., None], grouped, np.nan).reshape(scores.shape)
    return np.argsort(-scores, axis=-1, kind="stable")[:, :top].astype(np.int32)


def _infer_route_weights(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits, ids = types
    tokens, _ = activation(logits, "the logits")
    _scoring(attrs)
    return tensor("f32", tokens, _slots(ids, tokens))


def _slots(ids: TensorType, tokens: int) -> int:
    need(
        ids.format.name == "i32" and len(ids.shape) == 2 and ids.shape[0] == tokens,
        f"the experts' ids must be i32[{tokens},S], not {ids}",
    )
    return ids.shape[1]


def _route_weights(
    logits: Array, ids: Array, *, scoring: str, normalise: int, scale: float
) -> Array:
    """The weight of each slot, times `scale`; with `normalise`, the weights of a token sum to 1.

    A softmax over all experts whose chosen ones are normalised is a softmax over the chosen.
    """
    chosen = np.take_along_axis(logits, ids, axis=-1)
    if scoring == "sigmoid":
        weights = 1 / (1 + exp(-chosen))
        total = weights.sum(axis=-1, keepdims=True) + np.float32(NORM_FLOOR)
        weights = weights / total if normalise else weights
    else:
        among = chosen if normalise else logits
        largest = among.max(axis=-1, keepdims=True)
        weights = exp(chosen - largest) / exp(among - largest).sum(axis=-1, keepdims=True)
    return np.asarray(weights * np.float32(scale), dtype=np.float32)


def _infer_expert_linear(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight, ids, *bias = types
    rows = _experts(x, weight, bias, x.shape[1])
    return tensor("f32", x.shape[0], _slots(ids, x.shape[0]) * rows)


def _experts(x: TensorType, weight: TensorType, bias: Sequence[TensorType], columns: int) -> int:
    """Check what both products have in common; the rows of one expert."""
    need(x.format.name in ("f32", "q8") and len(x.shape) == 2, f"the input must be [T,K], not {x}")
    need(len(weight.shape) == 3, f"the weight must be [E,N,K], not {weight}")
    experts, rows, wanted = weight.shape
    need(rows % GROUP == 0, f"experts have {rows} rows, which {GROUP} does not divide")
    need(columns == wanted, f"the input has {columns} columns for an expert, the weight {wanted}")
    need(len(bias) < 2, "at most one bias")
    for type in bias:
        wanted_bias = tensor("f32", experts, rows)
        need(type == wanted_bias, f"the bias must be {wanted_bias}, not {type}")
    return rows


def _expert_linear(x: Array, weight: Array, ids: Array, *bias: Array) -> Array:
    """For each slot, x times its expert's rows (plus its row of the bias), side by side."""
    out = np.empty((*ids.shape, weight.shape[1]), np.float32)
    for t, s in np.ndindex(ids.shape):
        out[t, s] = weight[ids[t, s]] @ x[t] + sum(each[ids[t, s]] for each in bias)
    return out.reshape(len(x), -1)


def _infer_expert_mix(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight, ids, weights, *bias = types
    slots = _slots(ids, x.shape[0])
    need(x.shape[1] % slots == 0, f"the input's {x.shape[1]} columns are not {slots} equal slots")
    rows = _experts(x, weight, bias, x.shape[1] // slots)
    expected = tensor("f32", x.shape[0], slots)
    need(weights == expected, f"the slots' weights must be {expected}, not {weights}")
    need(
        x.format.name == "f32" or weight.shape[2] % x.format.block == 0,
        f"a slot of {weight.shape[2]} columns is not whole blocks of {x.format.block}",
    )
    return tensor("f32", x.shape[0], rows)


def _expert_mix(x: Array, weight: Array, ids: Array, weights: Array, *bias: Array) -> Array:
    """The sum over slots of weight × (the slot's part of x times its expert's rows, plus bias)."""
    parts = x.reshape(*ids.shape, -1)
    out = np.zeros((len(x), weight.shape[1]), np.float32)
    for t, s in np.ndindex(ids.shape):
        y = weight[ids[t, s]] @ parts[t, s] + sum(each[ids[t, s]] for each in bias)
        out[t] += weights[t, s] * y
    return out


OPS = (
    OpDef(
        "route",
        "tokens",
        _infer_route,
        _route,
        ("group_best", "groups", "scoring", "top", "top_groups"),
        aligned=(0,),
        grain=one,
    ),
    OpDef(
        "route_weights",
        "tokens",
        _infer_route_weights,
        _route_weights,
        ("normalise", "scale", "scoring"),
        aligned=(0, 1),
        grain=one,
    ),
    OpDef("expert_linear", "features", _infer_expert_linear, _expert_linear, variants=(1,)),
    OpDef("expert_mix", "features", _infer_expert_mix, _expert_mix, variants=(1,)),
)
