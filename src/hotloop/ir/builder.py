"""GraphBuilder: how a model family writes its layers down.

    x = g.op("embed", token, table)
    x = g.op("rms_norm", x, weight, eps=1e-5)

Values are named after what they are, with the prefix of the current scope; the builder infers
their types, and inserts the rounding of activations to 8 bit where a quantised weight wants it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from hotloop.ir.graph import Attr, Graph, Op, Value
from hotloop.ir.ops import infer
from hotloop.ir.types import TensorType


class GraphBuilder:
    """Collects declarations and ops; `build` gives the immutable graph.

    With `activations="q8"`, the input of a linear op whose weight is quantised is rounded to 8 bit
    once, however many linear ops read it; with "f32" everything stays in float32.
    """

    def __init__(self, name: str, activations: str = "f32") -> None:
        self.name = name
        self.activations = activations
        self.types: dict[str, TensorType] = {}
        self._declared: dict[str, list[Value]] = {"input": [], "weight": [], "state": []}
        self._ops: list[Op] = []
        self._rounded: dict[str, str] = {}
        self._gathered: dict[tuple[str, str], str] = {}
        self._scope = ""

    @contextmanager
    def scope(self, prefix: str) -> Iterator[None]:
        """Names defined inside get `prefix.` in front."""
        before, self._scope = self._scope, f"{self._scope}{prefix}."
        yield
        self._scope = before

    def input(self, name: str, type: TensorType) -> str:
        return self._declare("input", name, type)

    def weight(self, name: str, type: TensorType) -> str:
        """Declare a weight, or give the one declared before under this name."""
        return name if name in self.types else self._declare("weight", name, type)

    def state(self, name: str, type: TensorType) -> str:
        return self._declare("state", name, type)

    def _declare(self, kind: str, name: str, type: TensorType) -> str:
        value = Value(name, type)
        self._declared[kind].append(value)
        self.types[name] = type
        return name

    def op(self, op_name: str, *operands: str, to: str = "", **attrs: Attr) -> str:
        """Append an op and name its result `to` (default: the op's name) in the current scope.

        An op that only writes state gives the empty string.
        """
        type = infer(op_name, [self.types[name] for name in operands], attrs)
        result = None
        if type is not None:
            result = Value(self._fresh(to or op_name), type)
            self.types[result.name] = type
        self._ops.append(Op(op_name, operands, result, tuple(sorted(attrs.items()))))
        return result.name if result else ""

    def gather(self, x: str, order: str) -> str:
        """The columns of x in an order; once, however often it is asked for."""
        if (x, order) not in self._gathered:
            to = f"{x.removeprefix(self._scope)}.ordered"
            self._gathered[x, order] = self.op("gather", x, order, to=to)
        return self._gathered[x, order]

    def linear(self, x: str, weight: str, to: str) -> str:
        """x · weightᵀ, with x rounded to 8 bit first where the weight is quantised."""
        return self.op("linear", self._input_of(weight, x), weight, to=to)

    def _input_of(self, weight: str, x: str) -> str:
        """`x` as a product with the weight takes it."""
        format = self.types[weight].format
        if self.activations != "q8" or not (format.quantised and format.integers):
            return x
        if x not in self._rounded:
            self._rounded[x] = self.op("quantise", x, to=f"{x.removeprefix(self._scope)}.q8")
        return self._rounded[x]

    def route(
        self,
        logits: str,
        top: int,
        *bias: str,
        scoring: str = "softmax",
        groups: int = 1,
        top_groups: int = 1,
        group_best: int = 1,
        normalise: bool = True,
        scale: float = 1.0,
    ) -> tuple[str, str]:
        """The experts of a token's `top` slots, and their weights: ops `route`, `route_weights`."""
        ids = self.op(
            "route",
            logits,
            *bias,
            to="experts",
            top=top,
            scoring=scoring,
            groups=groups,
            top_groups=top_groups,
            group_best=group_best,
        )
        weights = self.op(
            "route_weights",
            logits,
            ids,
            to="experts.weights",
            scoring=scoring,
            normalise=int(normalise),
            scale=scale,
        )
        return ids, weights

    def expert_linear(self, x: str, weight: str, ids: str, *bias: str, to: str) -> str:
        """x times the rows of each slot's expert, x rounded to 8 bit as for `linear`."""
        return self.op("expert_linear", self._input_of(weight, x), weight, ids, *bias, to=to)

    def expert_mix(self, x: str, weight: str, ids: str, weights: str, *bias: str, to: str) -> str:
        """The weighted sum over slots of x's parts times their experts' rows."""
        x = self._input_of(weight, x)
        return self.op("expert_mix", x, weight, ids, weights, *bias, to=to)

    def _fresh(self, name: str) -> str:
        full, n = self._scope + name, 1
        while full in self.types:
            n += 1
            full = f"{self._scope}{name}.{n}"
        return full

    def build(
        self,
        outputs: tuple[str, ...],
        feedback: tuple[tuple[str, str], ...] = (),
        until: str = "",
        count: str = "",
    ) -> Graph:
        return Graph(
            self.name,
            tuple(self._declared["input"]),
            tuple(self._declared["weight"]),
            tuple(self._declared["state"]),
            tuple(self._ops),
            outputs,
            feedback,
            until,
            count,
        )
