"""The server as its clients see it: OpenAI's own Python client, and rude ones by plain HTTP."""

from __future__ import annotations

import json

import numpy as np
import openai
import pytest
import requests
from fake_executor import continuation
from serving import (
    BOS,
    CHAT,
    COMPLETION,
    END,
    HELLO,
    LETTERS,
    VOCAB,
    WEATHER,
    ByteCodec,
    Running,
    connect,
    make_executor,
    post,
    running,
    says,
)
from waiting import PATIENCE, wait_until

# models and tokens


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("gpt-4")


def test_tokenize_and_back(server: Running) -> None:
    made = post(server, "/tokenize", {"prompt": "hé<|im_end|>"}).json()
    assert made == {"tokens": [BOS, *"hé".encode(), END], "count": 5, "max_model_len": 512}
    bare = post(server, "/tokenize", {"prompt": "a", "add_special_tokens": False}).json()
    assert bare["tokens"] == [97]
    error = post(server, "/detokenize", {"tokens": [1, VOCAB]}).json()["error"]
    assert error["param"] == "tokens"
    back = post(server, "/detokenize", {"tokens": made["tokens"]}).json()
    assert back == {"prompt": "<s>hé<|im_end|>"}


# completions


def test_a_completion_is_what_the_model_says(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt="abc", max_tokens=12)
    (choice,) = done.choices
    wanted = continuation([BOS, *b"abc"], 12, LETTERS)
    assert choice.text.encode() == bytes(wanted)
    assert choice.finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (4, 12)
    assert done.usage.total_tokens == 16


def test_sixteen_tokens_are_the_default(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt="abc")
    assert done.usage.completion_tokens == 16


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=4)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    a, b = (bytes(continuation([BOS, *p], 4, LETTERS)).decode() for p in (b"a", b"b"))
    assert [choice.text for choice in done.choices] == [a, a, b, b]
    assert done.usage.prompt_tokens == 4


def test_prompts_of_tokens(client: openai.OpenAI) -> None:
    one = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=4)
    two = client.completions.create(model="tiny", prompt=[[1, 2, 3], [4]], max_tokens=4)
    assert one.choices[0].text == two.choices[0].text
    assert len(two.choices) == 2


def test_echo(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt="abc", max_tokens=0, echo=True)
    assert done.choices[0].text == "abc"
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 0
    stream = client.completions.create(
        model="tiny", prompt="abc", max_tokens=2, echo=True, stream=True
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text.encode() == b"abc" + bytes(continuation([BOS, *b"abc"], 2, LETTERS))


def test_completion_logprobs(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt="abc", max_tokens=3, logprobs=2)
    logprobs = done.choices[0].logprobs
    assert "".join(logprobs.tokens) == done.choices[0].text
    assert logprobs.text_offset == [0, 1, 2]
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    assert all(
        top[token] == logprob == max(top.values())
        for token, logprob, top in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
        )
    )


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "abc" * 20, "logprobs": 3, "echo": True}
    likely = 3 - np.log(np.exp(3) + VOCAB - 1)  # the fake model has one logit of 3, the rest 0
    tokens = [BOS, *b"abc" * 20]
    for count in (0, 4):
        done = client.completions.create(**asked, max_tokens=count)
        made = continuation(tokens, count, LETTERS)
        (choice,) = done.choices
        assert choice.text.encode() == b"abc" * 20 + bytes(made)
        assert done.usage.completion_tokens == count
        found = choice.logprobs
        assert "".join(found.tokens) == "<s>" + choice.text
        assert found.text_offset == [0, *range(len(choice.text))]
        assert found.token_logprobs[0] is found.top_logprobs[0] is None
        for at in range(1, 61 + count):
            said = continuation(tokens + made if at > 60 else tokens[:at], 1, LETTERS)[0]
            known = (tokens + made)[at] == (said if at <= 60 else made[at - 61])
            assert found.token_logprobs[at] == pytest.approx(likely if known else likely - 3)
            assert max(found.top_logprobs[at].values()) == pytest.approx(likely)
        stream = [*client.completions.create(**asked, max_tokens=count, stream=True)]
        assert "".join(chunk.choices[0].text for chunk in stream) == choice.text
        listed = [one for chunk in stream for one in chunk.choices[0].logprobs.token_logprobs]
        assert listed == found.token_logprobs


def test_echo_of_several_prompts(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="tiny", prompt=["a", "", "abc"], n=2, max_tokens=1, echo=True, logprobs=0
    )
    assert [len(choice.logprobs.tokens) for choice in done.choices] == [3, 3, 2, 2, 5, 5]
    assert [choice.text[:-1] for choice in done.choices] == ["a", "a", "", "", "abc", "abc"]


def test_suffix_needs_a_model_that_fills_in(
    server: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = post(server, "/v1/completions", COMPLETION | {"suffix": "x"})
    assert "tiny was not made to fill in" in response.json()["error"]["message"]
    whole = client.completions.create(model="tiny", prompt="a", suffix="", max_tokens=3)
    assert whole.usage.prompt_tokens == 2
    marks = {"<fim_prefix>": 128, "<fim_suffix>": 129, "<fim_middle>": 130}
    monkeypatch.setattr(ByteCodec, "whole_id", lambda _, text: marks.get(text))
    filled = client.completions.create(
        model="tiny", prompt="ab", suffix="c<|im_end|>", max_tokens=3
    )
    tokens = [BOS, 128, *b"ab", 129, *b"c<|im_end|>", 130]
    assert filled.choices[0].text.encode() == bytes(continuation(tokens, 3, LETTERS))
    several = post(server, "/v1/completions", COMPLETION | {"suffix": "x", "prompt": ["a", "b"]})
    assert "one text" in several.json()["error"]["message"]


def test_logit_bias(client: openai.OpenAI) -> None:
    forced = client.completions.create(
        model="tiny", prompt="abc", max_tokens=3, logit_bias={"120": 100}
    )
    assert forced.choices[0].text == "xxx"
    first = continuation([BOS, *b"abc"], 1, LETTERS)[0]
    banned = client.completions.create(
        model="tiny", prompt="abc", max_tokens=1, logit_bias={str(first): -100}
    )
    assert banned.choices[0].text != chr(first)


# chat


def test_chat(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, seed=1)
    prompt = b"Hello"
    assert done.choices[0].message.role == "assistant"
    assert len(done.choices[0].message.content) == 5
    assert done.object == "chat.completion"
    assert done.usage.prompt_tokens == len(prompt) + len("user\n\nassistant\n") + 4


def test_streams_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, n=2)
    stream = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_completion_tokens=20,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in stream:
        assert "usage" in chunk.model_fields_set  # null, until the last
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == ["length", "length"]
    assert usage.completion_tokens == whole.usage.completion_tokens == 40
    assert usage.prompt_tokens_details.cached_tokens > 0


def test_a_stop_token_ends_the_text() -> None:
    with says("Yes.") as server, connect(server) as client:
        done = client.chat.completions.create(model="tiny", messages=HELLO)
    assert done.choices[0].message.content == "Yes."
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.completion_tokens == 5


def test_stop_strings_end_it_too() -> None:
    with says("one two three four five six") as server, connect(server) as client:
        asked = {"model": "tiny", "messages": HELLO, "stop": ["e f", "six"]}
        done = client.chat.completions.create(**asked)
        stream = client.chat.completions.create(**asked, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert done.choices[0].message.content == streamed == "one two thre"
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.completion_tokens == len("one two three f")


def test_characters_of_several_tokens_come_whole() -> None:
    text = "Grüße, 世界 🌍!"
    with says(text) as server, connect(server) as client:
        # Tokens that come faster than they are looked at are sent together.
        server.executor.before = lambda: wait_until(server.executor.has_been_heard)
        stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert "世" in pieces
    assert "🌍" in pieces


def test_a_character_that_stays_incomplete() -> None:
    script = [*"é".encode()[:1], END]
    with running(make_executor(script=script)) as server, connect(server) as client:
        done = client.chat.completions.create(model="tiny", messages=HELLO)
    assert done.choices[0].message.content == "�"


def test_chat_logprobs(client: openai.OpenAI) -> None:
    for stream in (False, True):
        got = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2, stream=stream
        )
        choices = [chunk.choices[0] for chunk in got] if stream else got.choices
        found = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
        assert [len(one.top_logprobs) for one in found] == [2, 2, 2]
        assert all(one.top_logprobs[0].token == one.token for one in found)
        assert all(bytes(one.bytes).decode() == one.token for one in found)


# grammars and tools


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}, "n": {"type": "integer"}},
        "required": ["answer", "n"],
        "additionalProperties": False,
    }
    done = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        logit_bias={"32": -100, "10": -100, **{str(digit): -50 for digit in b"-123456789"}},
    )
    assert done.choices[0].finish_reason == "stop"
    found = json.loads(done.choices[0].message.content)
    assert found["answer"] in ("yes", "no")
    assert isinstance(found["n"], int)


def test_lark_grammar(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="tiny",
        prompt="abc",
        n=2,
        max_tokens=60,
        extra_body={"grammar": 'start: "<" /[ab]{3}/ ">"'},
    )
    assert all(choice.text[0] + choice.text[-1] == "<>" for choice in done.choices)
    assert all(set(choice.text[1:-1]) <= set("ab") for choice in done.choices)
    assert done.choices[0].finish_reason == "stop"


def test_grammars_that_cannot_go_on(client: openai.OpenAI) -> None:
    """Some schemas are found to be impossible, or too much, when a token is wanted."""
    many = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(2000)}}
    for schema in ({"$ref": "#"}, many):
        asked = {"name": "x", "schema": schema}
        with pytest.raises(openai.BadRequestError, match="the grammar cannot go on") as caught:
            client.chat.completions.create(
                model="tiny",
                messages=HELLO,
                response_format={"type": "json_schema", "json_schema": asked},
            )
        assert caught.value.param == "response_format.json_schema.schema"


def test_schemas_that_are_nested_too_deep(server: Running) -> None:
    text = json.dumps(
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}
    )
    for depth in (900, 5000):
        schema = '{"items": ' * depth + "{}" + "}" * depth
        response = requests.post(
            server.url + "/v1/chat/completions",
            data=text.replace('"name": "x"', f'"name": "x", "schema": {schema}'),
            headers={"Content-Type": "application/json"},
            timeout=PATIENCE,
        )
        assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
         "I look. "),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]', None),
        (' {"name": "weather", "parameters": {"city": "Rome"}}', None),
    ],
)  # fmt: skip
def test_tool_calls_are_found(text: str, content: str | None) -> None:
    with says(text) as server, connect(server) as client:
        asked = {"model": "tiny", "messages": HELLO, "tools": [WEATHER]}
        (choice,) = client.chat.completions.create(**asked).choices
        (call,) = choice.message.tool_calls
        assert choice.message.content == content
        assert choice.finish_reason == "tool_calls"
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        chunks = list(client.chat.completions.create(**asked, stream=True))
        (streamed,) = [
            c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls
        ]
        assert streamed[0].function.model_dump() == call.function.model_dump()
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == (content or "")
        # And the answer goes back.
        messages = [
            *HELLO,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        client.chat.completions.create(**(asked | {"messages": messages}))


@pytest.mark.parametrize("text", ["{braces} are text", "a <tool_call> for nothing", "<tool"])
def test_what_only_looks_like_a_call_is_text(text: str) -> None:
    with says(text) as server, connect(server) as client:
        done = client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER])
    assert done.choices[0].message.content == text
    assert done.choices[0].message.tool_calls is None


def test_a_call_that_is_demanded_is_made(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, reason in (("required", "tool_calls"), (named, "stop")):
        done = client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            tools=[WEATHER],
            tool_choice=choice,
            logit_bias={"32": -100, "10": -100},
        )
        (call,) = done.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        assert done.choices[0].finish_reason == reason


# what a stream is written with


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_any_text_is_the_same_in_a_stream(path: str) -> None:
    text = 'é "quoted" \\ \n\x00\x1f </script> 🙂 text\x00'
    prompt = {"prompt": "a"} if path == "completions" else {"messages": HELLO}
    with says(text) as server:
        whole = post(server, f"/v1/{path}", prompt | {"max_tokens": 99}).json()["choices"][0]
        stream = post(server, f"/v1/{path}", prompt | {"max_tokens": 99, "stream": True})
        events = [json.loads(line[6:]) for line in stream.content.split(b"\n\n") if b"{" in line]
        choices = [event["choices"][0] for event in events]
        if path == "completions":
            assert whole["text"] == text
            assert "".join(choice["text"] for choice in choices) == text
        else:
            assert whole["message"]["content"] == text
            assert "".join(choice["delta"].get("content", "") for choice in choices) == text
        assert len({tuple(sorted(event)) for event in events}) == 1
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
