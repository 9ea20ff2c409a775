"""Chat templates: Jinja programs in model files that turn a conversation into a prompt.

The names they see are those of Hugging Face's `apply_chat_template`, for which they are written.
They come from strangers, so they run in `template_sandbox`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from hotloop.frontends.tokenizer import Tokenizer
from hotloop.util.errors import TemplateError, UnsupportedError

Message = Mapping[str, object]
"""At least a `role` and a `content`."""

LENGTH_LIMIT = 1 << 18
"""Characters in a template; the longest in use have some 30,000."""

#: What evaluating an expression can raise: a template is a program, and all of these are its own.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    **extra: object,
) -> str:
    """The prompt that `template` makes of `messages`; special tokens stand in it as text.

    `extra` is passed to the template (`enable_thinking=False`, `documents=…`). Raises
    `TemplateError` where the template is broken, refuses the conversation, or takes too much.
    """
    import jinja2
    from jinja2.exceptions import SecurityError

    from hotloop.frontends.template_sandbox import BudgetError, TemplateSandbox

    if len(template) > LENGTH_LIMIT:
        raise TemplateError(
            f"the chat template is longer than {LENGTH_LIMIT} characters; {_ADVICE}"
        )
    sandbox = TemplateSandbox()
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    names = {"bos_token": bos_token, "eos_token": eos_token, **extra}
    names = {name: value for name, value in names.items() if value is not None}
    names |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
    try:
        return sandbox.from_string(template).render(names)
    except _RefusalError as error:
        found = "refuses this conversation"
        reason: Exception = error
    except BudgetError as error:
        found, reason = "takes too much", error
    except SecurityError as error:
        found, reason = "does what is not allowed", error
    except jinja2.TemplateSyntaxError as error:
        found, reason = f"is broken in line {error.lineno}", error
    except (jinja2.TemplateError, *_FAILURES) as error:
        found, reason = f"fails with {type(error).__name__}", error
    raise TemplateError(f"the chat template {found} ({_one_line(reason)}); {_ADVICE}")


def render_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]] | None = None,
    **names: Any,
) -> str:
    """The prompt for the messages, by the model's own template and special tokens.

    `names` are passed to the template. Raises `UnsupportedError` where the model has no template,
    and what `render` raises.
    """
    template = tokenizer.tool_template if tools and tokenizer.tool_template else None
    template = template or tokenizer.chat_template
    if template is None:
        raise UnsupportedError("this model has no chat template; complete the raw text instead.")

    def special(id: int | None) -> str:
        return "" if id is None else tokenizer.token_text(id)

    bos, eos = special(tokenizer.bos_id), special(tokenizer.eos_id)
    return render(template, messages, bos_token=bos, eos_token=eos, tools=tools, **names)


_ADVICE = "complete the raw text instead, or pass another template."


class _RefusalError(Exception):
    """What `raise_exception` raises: the template says that a conversation is not of its form."""


def _refuse(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format[:100])


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 200 else text[:197] + "..."
