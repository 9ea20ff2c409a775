"""What the command line's library says of a wrong value, as one sentence of ours."""

from collections.abc import Callable, Mapping
from typing import Any

import typer

#: What a value must be, by the validator's name of the rule that it breaks.
_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda ctx: "it must be a whole number",
    "int_parsing_size": lambda ctx: "it must be a whole number of fewer digits",
    "int_from_float": lambda ctx: "it must be a whole number",
    "float_parsing": lambda ctx: "it must be a number",
    "bool_parsing": lambda ctx: "it must be yes or no",
    "greater_than_equal": lambda ctx: f"it must be at least {ctx['ge']:g}",
    "less_than_equal": lambda ctx: f"it must be at most {ctx['le']:g}",
}
_CHOICES = " is not one of "


def message(error: typer.TyperException) -> str:
    """What was given, and what must be; the library's own words for any other mistake."""
    found = _broken_rule(error)
    if found is None:
        return f"{error.format_message().rstrip('.')}; see hotloop --help."
    name, rule = found
    return f"{name} is {str(rule['input'])!r}; {_must(rule)}."


def _broken_rule(error: typer.TyperException) -> tuple[str, Mapping[str, Any]] | None:
    """The parameter as users write it, and the first rule that its value breaks."""
    from pydantic import ValidationError  # what the library checks with: loaded when it fails

    if not isinstance(error, typer.BadParameter) or error.param is None:
        return None
    if not isinstance(error.__cause__, ValidationError):
        return None
    (first, *_) = error.__cause__.errors(include_url=False)
    options = [name for name in error.param.opts if name.startswith("-")]
    name = "/".join(options) if options else str(error.param.name).upper()
    return name, first


def _must(rule: Mapping[str, Any]) -> str:
    if rule["type"] in _RULES:
        return _RULES[rule["type"]](rule.get("ctx", {}))
    text = str(rule["msg"]).removeprefix("Value error, ").rstrip(".")
    _, is_choice, choices = text.partition(_CHOICES)
    if is_choice:
        return f"it must be one of {choices.replace(chr(39), '')}"
    return text
