"""Tools: how a model is told of functions, and how its calls are found in what it writes.

Chat templates tell the model; what it then writes is one of a few customs:

    <tool_call>{"name": …, "arguments": {…}}</tool_call>       Hermes, Qwen, SmolLM3
    [TOOL_CALLS][{"name": …, "arguments": {…}}, …]             Mistral
    {"name": …, "parameters": {…}}                             Llama 3

Where a call is demanded, a grammar makes it: one JSON object, without any of the marks.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hotloop.serve.schemas import ChatRequest, Function, FunctionCall, Message, ToolCall

_OPEN, _CLOSE, _LIST = "<tool_call>", "</tool_call>", "[TOOL_CALLS]"
_MARKS = (_OPEN, _LIST, "<|python_tag|>")


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: arguments are objects, roles the old ones."""
    return [_template_message(message) for message in messages]


def _template_message(message: Message) -> dict[str, Any]:
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    out: dict[str, Any] = {"role": role, "content": message.text or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _parse(call.function.arguments, call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return out


def offered(request: ChatRequest) -> list[Function]:
    """The functions that the model may call."""
    if request.tool_choice == "none":
        return []
    functions = [tool.function for tool in request.tools or ()]
    if request.tool_choice is None or isinstance(request.tool_choice, str):
        return functions
    wanted = request.tool_choice.function.name
    return [function for function in functions if function.name == wanted]


def call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """The JSON schema of one call of one of `functions`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function.name},
                "arguments": function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


class CallFinder:
    """Lets text through until a call seems to begin; the rest is read at the end.

    `names` are the functions there are. With `demanded`, all text is a call.
    """

    def __init__(self, names: Sequence[str], demanded: bool) -> None:
        self._names = frozenset(names)
        self._demanded = demanded
        self._held = ""
        self._calls = demanded
        self._begun = False

    def push(self, text: str) -> str:
        """The text that belongs to no call."""
        self._held += text
        if self._calls:
            return ""
        if not self._begun:
            start = self._held.lstrip()
            if not start:
                return ""
            self._begun = True
            if start.startswith("{"):
                self._calls = True
                return ""
        found = [at for mark in _MARKS if (at := self._held.find(mark)) >= 0]
        if found:
            self._calls = True
            return self._take(min(found))
        return self._take(len(self._held) - _possible(self._held))

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The calls in what was held back; where there are none, it was text."""
        calls = [call for call in _calls(self._held) if call.function.name in self._names]
        text, self._held = "" if calls else self._held, ""
        return text, calls

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def _possible(text: str) -> int:
    """Characters at the end of `text` that may be the beginning of a mark."""
    longest = 0
    for mark in _MARKS:
        for count in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:count]):
                longest = count
                break
    return longest


def _calls(text: str) -> Iterator[ToolCall]:
    for value in _objects(text):
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            continue
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = value["name"]
        id = f"call_{secrets.token_hex(12)}"
        yield ToolCall(id=id, function=FunctionCall(name=name, arguments=arguments))


def _objects(text: str) -> Iterator[object]:
    """What stands in any of the customs' places, where it is JSON."""
    if _OPEN in text:
        for part in text.split(_OPEN)[1:]:
            yield _parse(part.partition(_CLOSE)[0])
        return
    for mark in _MARKS:
        text = text.removeprefix(mark)
    value = _parse(text)
    if isinstance(value, list):
        yield from value
    else:
        yield value


def _parse(text: str, otherwise: object = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
