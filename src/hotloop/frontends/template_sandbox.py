"""A Jinja environment for templates by strangers: what they may call, and how much they may do.

Jinja's own sandbox stops a template from reaching Python's internals, not from running for ever or
filling the memory. This one keeps two promises while a template runs:

- no value is heavier than `VALUE_LIMIT` (`weight`: characters and elements, counted as often as
  they would be printed), so whatever one operation does to its operands stays small;
- all values made, pieces written and steps taken weigh at most `TOTAL_LIMIT` together, and no step
  begins after `TIME_LIMIT` seconds of work.

Every way to make a value goes through a check: calls, filters and some operators because Jinja
lets an environment intercept them; loops, `~` and literals because `_Metered` rewrites them into
calls. What could make much out of little, and chat templates don't need, isn't there at all:
`round`, `center`, `str.format` and their like.
"""

import json
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Set,
    ValuesView,
)
from functools import update_wrapper
from typing import Any, TypeVar

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

T = TypeVar("T")

VALUE_LIMIT = 1 << 23
TOTAL_LIMIT = 1 << 27
TIME_LIMIT = 5.0
"""Seconds of this thread's work, whatever else runs; real templates take milliseconds."""
_INTEGER_BITS = 4096
_LARGEST_INDENT = 16

# fmt: off
_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max",
    "min", "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr", "sort",
    "string", "title", "trim", "unique", "upper",
)

_STRING_METHODS = (
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper",
)
# fmt: on

#: Attributes that templates see of plain data; the base class decides about Jinja's own objects.
_ATTRIBUTES: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(_STRING_METHODS)),
    (Mapping, frozenset(("copy", "get", "items", "keys", "values"))),
    ((list, tuple), frozenset(("copy", "count", "index"))),
    ((int, float, complex, bytes, range, type, ItemsView, KeysView, ValuesView), frozenset()),
)


class BudgetError(SecurityError):
    """A template that takes more than it may; the message says of what."""


def weight(value: object, limit: int) -> int:
    """Characters and elements in `value`, shared parts counted each time; stops above `limit`."""
    total = 0
    rest = [value]
    while rest and total <= limit:
        item = rest.pop()
        if isinstance(item, (str, bytes)):
            total += len(item) + 1
        elif isinstance(item, int):
            total += item.bit_length() // 32 + 1
        elif isinstance(item, range):
            total += len(item) + 1
        elif isinstance(item, Mapping):
            total += len(item) + 1
            rest += item.keys()
            rest += item.values()
        elif isinstance(item, (list, tuple, Set, ValuesView)):
            total += len(item) + 1
            rest += item
        else:
            total += 1
    return total


def _dict(source: Mapping[Any, Any] | None = None, /, **values: Any) -> dict[Any, Any]:
    """`dict` without its form that takes pairs, which would build one of colliding keys slowly."""
    return {**(source or {}), **values}


class QuietNamespace(Namespace):
    """Jinja's `namespace`, which may contain itself, printed without what it holds."""

    def __repr__(self) -> str:
        return "<namespace>"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering: its budget is not renewed."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # Folding constants would evaluate before anything is metered.
            extensions=["jinja2.ext.loopcontrols", Generation],
            finalize=self.weighed,
        )
        self._spent = 0
        self._deadline = time.thread_time() + TIME_LIMIT
        self.globals = {"range": self.globals["range"], "dict": _dict, "namespace": QuietNamespace}
        self.filters = {name: self._metered(self.filters[name]) for name in _FILTERS}
        self.filters |= {"join": self._join, "indent": self._indent, "replace": self._replace}
        self.filters["tojson"] = self._tojson

    # The meter.

    def step(self, cost: int = 1) -> bool:
        """Take one step; always true, so that it can stand in a condition."""
        self._spent += cost
        if self._spent > TOTAL_LIMIT:
            raise BudgetError(f"more than {TOTAL_LIMIT} characters and steps")
        if time.thread_time() > self._deadline:
            raise BudgetError(f"more than {TIME_LIMIT:g} s")
        return True

    def weighed(self, value: T) -> T:
        """`value`, if it isn't too heavy."""
        self._allow(weight(value, VALUE_LIMIT))
        return value

    def _allow(self, size: int) -> None:
        if size > VALUE_LIMIT:
            raise BudgetError(f"a value of more than {VALUE_LIMIT} characters or elements")
        self.step(size)

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = function(*args, **kwargs)
            return self._stepping(result) if isinstance(result, Iterator) else self.weighed(result)

        return update_wrapper(metered, function)  # With what tells Jinja which arguments to pass.

    def _stepping(self, values: Iterator[T]) -> Iterator[T]:
        for value in values:
            self.step()
            yield value

    # What Jinja asks its environment to do.

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metered().visit(super()._parse(source, name, filename))
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.step()
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and __obj.__name__ == "join":
            return __self._join(args[0], text)
        if isinstance(text, str) and __obj.__name__ == "replace":
            return __self._replace(text, *args)
        return __self.weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.step()
        if operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("formatting with %")
        if operator == "*":
            self._check_product(left, right)
        if operator == "**" and _bits(left) * abs(right) > _INTEGER_BITS:
            raise BudgetError(f"a power of more than {_INTEGER_BITS} bits")
        return self.weighed(super().call_binop(context, operator, left, right))

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        self.step()
        return super().call_test(*args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.step()
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.step()
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _ATTRIBUTES:
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `str.format` to `is_safe_attribute`, which refuses it."""

    # Operations whose results are weighed before they are made.

    def concatenated(self, *values: object) -> str:
        """The `~` operator."""
        self._allow(sum(weight(value, VALUE_LIMIT) for value in values))
        return "".join(map(str, values))

    def _check_product(self, left: Any, right: Any) -> None:
        for times, value in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, (str, list, tuple)):
                self._allow(max(0, times) * weight(value, VALUE_LIMIT))
        if _bits(left) + _bits(right) > _INTEGER_BITS:
            raise BudgetError(f"a product of more than {_INTEGER_BITS} bits")

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = list(value)
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        self._allow(weight(items, VALUE_LIMIT) + len(items) * len(d))
        return d.join(map(str, items))

    def _indent(
        self, s: object, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        prefix = width if isinstance(width, str) else " " * min(width, VALUE_LIMIT)
        lines = str(s).split("\n")
        self._allow(len(lines) * (len(prefix) + 1) + weight(s, VALUE_LIMIT))
        return "\n".join(
            prefix + line if (line or blank) and (first or index) else line
            for index, line in enumerate(lines)
        )

    def _replace(self, s: object, old: str, new: str, count: int | None = None) -> str:
        text = str(s)
        found = text.count(old) if old else len(text) + 1
        self._allow(len(text) + found * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As Hugging Face has it: unlike Jinja's own, nothing is escaped for HTML."""
        if isinstance(indent, int) and indent > _LARGEST_INDENT:
            raise BudgetError(f"an indent of more than {_LARGEST_INDENT}")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        size = 0
        chunks: list[str] = []
        for chunk in encoder.iterencode(value):
            size += len(chunk)
            if size > VALUE_LIMIT:
                break
            chunks.append(chunk)
        self._allow(size)
        return "".join(chunks)


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


Repeated = nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block


class _Metered(NodeTransformer):
    """Rewrites what an environment cannot intercept into calls of `TemplateSandbox`'s methods."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.test is not None:  # Runs for elements that never reach the body.
            node.test = nodes.And(_call("step"), node.test, lineno=node.lineno)
        return self._body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802
        return self._body(node)

    def _body(self, node: Repeated) -> nodes.Node:
        """Repeated statements start with a step that pays for the text among them."""
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        step = _call("step", nodes.Const(text + 1))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenated", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("weighed", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _call("weighed", node)


def _call(method: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, and renders as its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
