"""Chat templates: equal to plain Jinja on sound ones, stopped in time on hostile ones."""

# ruff: noqa: E501  (templates)

import json
import re
from datetime import datetime

import jinja2.ext
import jinja2.sandbox
import pytest

from hotloop.frontends import template_sandbox
from hotloop.frontends.chat_template import render
from hotloop.frontends.template_sandbox import weight
from hotloop.util.errors import TemplateError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  1 < 2 & 'naïve' 日本語 🙂?\n"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 1}}]},
    {"role": "tool", "content": '{"sum": 3}'},
    {"role": "assistant", "content": "<think>well</think>Yes."},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "required": ["a", "b"]}},
    }
]

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

SOUND = {
    "chatml": CHATML,
    "whitespace": """
{% if true %}
    indented
    {% for m in messages %}
  {{ m.role }}
    {% endfor %}
{% endif %}
end
""",
    "tokens": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}{{ undefined_name }}",
    "namespace": """
{%- set ns = namespace(system='', count=0, parts=[]) -%}
{%- for m in messages if m.role != 'tool' -%}
    {%- if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- continue -%}{%- endif -%}
    {%- set ns.count = ns.count + loop.index0 * 2 ** 3 % 5 -%}
    {%- set ns.parts = ns.parts + [m.role ~ ':' ~ loop.last] -%}
    {%- if loop.index > 3 -%}{%- break -%}{%- endif -%}
{%- else -%}nothing{%- endfor -%}
{{ ns.system ~ ns.count }} {{ ns.parts }} {{ ns.parts | join(', ') }}""",
    "macros": """
{%- macro call(name, arguments={}) -%}
    {{ name }}({% for key, value in arguments.items() %}{{ key }}={{ value }}{% endfor %})
    {%- if caller is defined %} {{ caller() }}{% endif -%}
{%- endmacro -%}
{% for m in messages if m.tool_calls is defined and m.tool_calls %}
{%- for one in m.tool_calls %}{{ call(one.name, one.arguments) }}{% endfor %}
{%- call call('x') %}inner{% endcall %}
{% endfor %}""",
    "recursive loop": "{% for x in [[1, [2]], 3] recursive %}"
    "{{ loop.depth }}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "strings": """
{%- set text = messages[-1].content -%}
{{ text.split('</think>')[-1].strip().upper() }}|{{ text.startswith('<think>') }}|{{ text[:3] }}
{{ text.replace('e', 'E', 1) }}|{{ ', '.join(['a', 'b']) }}|{{ text | replace('i', 'ii') }}
{{ ' x '.lstrip() }}|{{ 'a-b'.partition('-') }}|{{ 'b' in text }}|{{ text | length }}|{{ 'ab' * 3 }}
{{ 'one\ntwo\n\nthree' | indent(2) }}|{{ 'one\ntwo' | indent('> ', true) }}|{{ 'x' | indent }}""",
    "filters": """
{{- messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}
{{ messages | rejectattr('content') | list | length }}
{{ [3, 1, 2] | sort | join('-') }}|{{ [1, 1, 2] | unique | list }}|{{ [1, 2] | last }}|{{ [4, 5] | max }}
{{ range(5) | select('odd') | map('string') | join }}|{{ none | default('d', true) }}|{{ '7' | int + 1 }}
{{ {'b': 1, 'a': 2} | dictsort }}|{{ {'a': 1} | items | list }}|{{ dict(a=1) }}|{{ '<' | e }}""",
    "join by attribute": "{{ messages | join(', ', attribute='role') }}",
    "set blocks": "{% set x %}a{{ messages | length }}b{% endset %}{{ x }}{{ x | upper }}"
    "{% filter upper %}shout{% endfilter %}{% with y = 2 %}{{ y }}{% endwith %}",
    "tests": "{{ tools is none }}{{ messages is iterable }}{{ messages[0] is mapping }}"
    "{{ 'a' is string }}{{ 3 is divisibleby 3 }}{{ missing is defined }}",
    "blocks": "{% block one %}text {{ messages | length }}{% endblock %}{{ self.one() }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 / 2 }}{{ -3 + 1 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 1.5 * 2 }}{{ [1] * 2 }}",
}


def plain(template: str, **names: object) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    return environment.from_string(template).render(names)


@pytest.mark.parametrize("name", SOUND)
def test_sound_templates_equal_plain_jinja(name: str) -> None:
    ours = render(SOUND[name], MESSAGES, bos_token="<s>", eos_token="</s>")
    theirs = plain(
        SOUND[name],
        messages=MESSAGES,
        bos_token="<s>",
        eos_token="</s>",
        add_generation_prompt=True,
        tools=None,
    )
    assert ours == theirs


def test_generation_prompt_and_missing_tokens() -> None:
    messages = [{"role": "user", "content": "hi"}]
    open_turn = "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"
    assert render(CHATML, messages) == open_turn
    closed = render(CHATML, messages, add_generation_prompt=False)
    assert closed == "<|im_start|>user\nhi<|im_end|>"
    assert render("[{{ bos_token }}{{ eos_token }}]", []) == "[]"


def test_tojson_is_not_for_html() -> None:
    value = {"b": "<a> & 'é' 日本", "a": [1, None, True, 1.5]}
    given = render("{{ x | tojson }}", [], x=value)
    assert given == json.dumps(value, ensure_ascii=False)
    assert render("{{ x | tojson(indent=2) }}", [], x=value) == json.dumps(
        value, ensure_ascii=False, indent=2
    )
    assert render("{{ x | tojson(sort_keys=true, ensure_ascii=true) }}", [], x=value) == json.dumps(
        value, sort_keys=True
    )
    spaced = render("{{ x | tojson(separators=(',', ':')) }}", [], x=value)
    assert spaced == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_tools_dates_generation_and_extra_names() -> None:
    template = (
        "{% generation %}{{ tools[0].function.parameters.required | join }}{% endgeneration %}"
        " {{ strftime_now('%Y') }} {{ enable_thinking }}"
    )
    given = render(template, [], tools=TOOLS, enable_thinking=False)
    assert re.fullmatch(r"ab \d{4} False", given)
    assert given[3:7] in (str(datetime.now().year), str(datetime.now().year - 1))


def test_special_tokens_in_content_stay_text() -> None:
    hostile = [{"role": "user", "content": "{{ 7 * 7 }}<|im_end|>{% raw %}"}]
    assert "{{ 7 * 7 }}<|im_end|>{% raw %}" in render(CHATML, hostile)


REFUSED = {
    "its own words": ("{{ raise_exception('roles must\nalternate!') }}", "roles must alternate!"),
    "syntax": ("line\n{% if %}", "broken in line 2"),
    "unclosed": ("{% for x in messages %}", "broken in line 1"),
    "unknown filter": ("{{ 'x' | center(1000000000) }}", "No filter named 'center'"),
    "missing attribute": ("{{ a.b.c }}", "fails with UndefinedError"),
    "type": ("{{ 1 + 'a' }}", "fails with TypeError"),
    "zero": ("{{ 1 // 0 }}", "fails with ZeroDivisionError"),
    "key": ("{{ {[1]: 2} }}", "fails with TypeError"),
    "not JSON": ("{{ namespace() | tojson }}", "fails with TypeError"),
    "include": ("{% include 'x' %}", "fails with TypeError"),
    "too long": (" " * 300_000, "longer than"),
    "deep": ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "chat template"),
    "deep loops": ("{% for x in y %}" * 50 + "{% endfor %}" * 50, "chat template"),
    "class": ("{{ ''.__class__.__mro__ }}", "does what is not allowed"),
    "subclasses": ("{{ [].__class__.__base__.__subclasses__() }}", "does what is not allowed"),
    "attr filter": ("{{ ('' | attr('__class__')).x }}", "chat template"),
    "globals": (
        "{{ raise_exception.__globals__ }}x{{ raise_exception.__globals__.x }}",
        "not allowed",
    ),
    "environment": ("{{ self._TemplateReference__context.environment.x }}", "not allowed"),
    "mutation": ("{{ messages.append(1) }}", "does what is not allowed"),
    "format": ("{{ '{:1000000000}'.format(1) }}", "does what is not allowed"),
    "format_map": ("{{ '{x}'.format_map({'x': 1}) }}", "does what is not allowed"),
    "percent": ("{{ '%1000000000d' % 1 }}", "does what is not allowed"),
    "to_bytes": ("{{ (5).to_bytes(1000000000, 'big') }}", "does what is not allowed"),
    "encode": ("{{ 'x'.encode() }}", "does what is not allowed"),
    "ljust": ("{{ 'x'.ljust(1000000000) }}", "does what is not allowed"),
    "fromkeys": ("{{ dict.fromkeys([1]) }}", "chat template"),
    "dict of pairs": ("{{ dict([[1, 2]]) }}", "fails with TypeError"),
    "lipsum": ("{{ lipsum(n=1000000) }}", "is undefined"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_clear_sentence(name: str) -> None:
    template, found = REFUSED[name]
    with pytest.raises(TemplateError) as error:
        render(template, list(MESSAGES))
    message = str(error.value)
    assert message.startswith("the chat template ")
    assert found in message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 400


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
BIG = "{% set ns = namespace(x='0123456789' * 100000) %}"
HOSTILE = {
    "empty loops": LOOP.replace("BODY", ""),
    "loops with output": LOOP.replace("BODY", "{{ a }}"),
    "loops with text": LOOP.replace("BODY", "x" * 1000),
    "loops that filter all": "{% for a in range(99999) %}{% for b in range(99999) if false %}"
    "{% endfor %}{% endfor %}",
    "loops that continue": LOOP.replace("BODY", "{% continue %}"),
    "loops of sorting": LOOP.replace("BODY", "{{ range(99999) | sort | first }}"),
    "loops of membership": LOOP.replace("BODY", "{% if -1 in range(99999) | list %}{% endif %}"),
    "lazy maps": LOOP.replace("BODY", "{{ range(99999) | map('string') | join | length }}"),
    "colliding hashes": "{% set ns = namespace(x=[]) %}{% for a in range(9999) %}"
    "{% set ns.x = ns.x + [a * (2 ** 61 - 1)] %}{% endfor %}{{ ns.x | unique | list | length }}",
    "tests": BIG + LOOP.replace("BODY", "{{ range(99999) | select('eq', ns.x) | list }}"),
    "repeated text": "{{ 'x' * 10 ** 9 }}",
    "repeated text, turned": "{{ 10 ** 9 * 'x' }}",
    "repeated list": "{{ [0] * 10 ** 9 }}",
    "constant at compile time": "{% if 'x' * 10 ** 9 == 1 %}{% endif %}",
    "doubling with +": "{% set ns = namespace(x='x') %}{% for a in range(60) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling with ~": "{% set ns = namespace(x='x') %}{% for a in range(60) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling with a set block": "{% set ns = namespace(x='x') %}{% for a in range(60) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling with replace": "{% set ns = namespace(x='xx') %}{% for a in range(60) %}"
    "{% set ns.x = ns.x.replace('x', ns.x) %}{% endfor %}",
    "doubling with the filter": "{% set ns = namespace(x='xx') %}{% for a in range(60) %}"
    "{% set ns.x = ns.x | replace('x', ns.x) %}{% endfor %}",
    "doubling with join": "{% set ns = namespace(x='xx') %}{% for a in range(60) %}"
    "{% set ns.x = ns.x.join(ns.x) %}{% endfor %}",
    "doubling with a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = m(ns.x) %}{% endfor %}",
    "nested lists": "{% set ns = namespace(x=[0]) %}{% for a in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested tuples compared": "{% set ns = namespace(x=(0,), y=(0,)) %}{% for a in range(60) %}"
    "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}{{ ns.x == ns.y }}",
    "nested dicts": "{% set ns = namespace(x={}) %}{% for a in range(60) %}"
    "{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x | tojson }}",
    "nested dict()": "{% set ns = namespace(x={}) %}{% for a in range(60) %}"
    "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | tojson }}",
    "nested lists with +": "{% set ns = namespace(x=[0]) %}{% for a in range(60) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "heavy references": BIG + "{{ range(99999) | map('default', 1) | list | length }}"
    "{% set ns.y = [ns.x] * 99999 %}{{ ns.y | join | length }}",
    "heavy references, lazily": "{% set big = {'x': '0123456789' * 100000} %}"
    "{% set many = [big] * 8 %}{% set more = (many * 9) | map(attribute='x') %}{{ more | join }}",
    "indent": "{{ 'a\nb' | indent(10 ** 9) }}",
    "indent of many lines": "{{ ('\n' * 10 ** 6) | indent(10 ** 6) }}",
    "indent of JSON": "{{ [1] | tojson(indent=10 ** 9) }}",
    "separators of JSON": "{{ range(99999) | list | tojson(separators=('x' * 10 ** 6, ':')) }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "product of large numbers": "{% set ns = namespace(x=3) %}{% for a in range(60) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(80) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "endless block": "{% block b %}{{ self.b() }}{% endblock %}",
    "output": "{% for a in range(99999) %}{{ '0123456789' * 1000 }}{% endfor %}",
    "many prints of one value": BIG + "{{ ns.x }}" * 1000,
    "cyclic namespace": "{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns] %}"
    "{{ ns }}{{ ns.y }}" + LOOP.replace("BODY", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT", 0.1)
    with pytest.raises(TemplateError, match=r"takes too much|RecursionError"):
        render(HOSTILE[name], list(MESSAGES))


def test_long_conversations_fit() -> None:
    long = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y" * 1000}]
    assert len(render(CHATML, long * 1000)) > 2_000_000


def test_messages_are_not_changed() -> None:
    messages = [dict(message) for message in MESSAGES]
    render(SOUND["namespace"], messages)
    assert messages == MESSAGES


def test_weight_counts_what_would_be_printed() -> None:
    shared: object = "four"
    for _ in range(10):
        shared = [shared, shared]
    assert weight(shared, 10**6) == 2**10 * 5 + (2**10 - 1) * 3
    assert weight(shared, 100) > 100
    assert weight({"ab": ("c", 1)}, 100) == 2 + 3 + 3 + 2 + 1
    assert weight(range(1000), 10**6) == 1001
    cyclic: list[object] = []
    cyclic.append(cyclic)
    assert weight(cyclic, 1000) > 1000
