"""What requests may say to the server, and what it says of those that are wrong."""

from __future__ import annotations

import json

import openai
import pytest
import requests
from serving import (
    CHAT,
    COMPLETION,
    END,
    HELLO,
    VOCAB,
    WEATHER,
    Running,
    connect,
    make_executor,
    post,
    running,
    says,
)
from waiting import PATIENCE


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", CHAT | {"temperature": -1}, "temperature"),
        ("chat/completions", CHAT | {"temperature": "0.5"}, "temperature"),
        ("chat/completions", CHAT | {"max_token": 5}, "max_token"),
        ("chat/completions", CHAT | {"messages": []}, "messages"),
        ("chat/completions", CHAT | {"messages": [{"role": "cat"}]}, "messages.0.role"),
        ("chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", CHAT | {"stop": [""]}, "stop.0"),
        ("chat/completions", CHAT | {"stop": ["x"] * 17}, "stop"),
        ("chat/completions", CHAT | {"stream_options": {}}, "stream_options"),
        ("chat/completions", CHAT | {"logit_bias": {"9999": 1}}, "logit_bias"),
        ("chat/completions", CHAT | {"logit_bias": {"-1": 1}}, "logit_bias"),
        ("chat/completions", CHAT | {"tool_choice": "required"}, "tool_choice"),
        ("chat/completions", CHAT | {"response_format": {"type": "xml"}}, "response_format"),
        (
            "chat/completions",
            CHAT | {"grammar": "start: x", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("chat/completions", CHAT | {"grammar": "start: nothing"}, "grammar"),
        (
            "chat/completions",
            CHAT
            | {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "cat"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ("chat/completions", CHAT | {"chat_template_kwargs": {"messages": 1}},
         "chat_template_kwargs"),
        ("chat/completions", CHAT | {"n": 129}, "n"),
        ("completions", COMPLETION | {"prompt": []}, "prompt"),
        ("completions", COMPLETION | {"prompt": [VOCAB]}, "prompt"),
        ("completions", COMPLETION | {"prompt": ["a"] * 65, "n": 2}, "n"),
        ("completions", COMPLETION | {"best_of": 2}, "best_of"),
        ("completions", COMPLETION | {"suffix": "x"}, "suffix"),
        ("completions", COMPLETION | {"suffix": "x", "echo": True}, "suffix"),
        ("completions", COMPLETION | {"suffix": 1}, "suffix"),
        ("completions", {"model": "tiny"}, "prompt"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(
    server: Running, path: str, body: dict[str, object], param: str
) -> None:
    response = post(server, f"/v1/{path}", body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


def test_null_means_what_leaving_out_means(server: Running) -> None:
    """Clients of other languages write down all fields that they know, and null for most."""
    known = server_schema(server, "ChatRequest") - {"model", "messages"}
    written = CHAT | {"temperature": 0, "max_tokens": 4}
    nulls = dict.fromkeys(known) | written
    answers = [post(server, "/v1/chat/completions", body) for body in (written, nulls)]
    texts = [answer.json()["choices"] for answer in answers]
    assert texts[0] == texts[1]
    nulls = dict.fromkeys(server_schema(server, "CompletionRequest") - {"prompt"})
    assert post(server, "/v1/completions", COMPLETION | nulls).status_code == 200
    for name, value in (("temperature", -1), ("n", 0), ("stream", "yes"), ("top_p", 0)):
        response = post(server, "/v1/completions", COMPLETION | {name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def server_schema(server: Running, name: str) -> set[str]:
    """The fields of a request, by the server's own account."""
    schema = requests.get(server.url + "/openapi.json", timeout=PATIENCE).json()
    return set(schema["components"]["schemas"][name]["properties"])


def test_fields_that_change_nothing_are_taken(server: Running) -> None:
    extra = {
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "abc"},
        "prompt_cache_key": "a",
        "reasoning_effort": "low",
        "safety_identifier": "b",
        "service_tier": "auto",
        "verbosity": "low",
    }
    assert post(server, "/v1/chat/completions", CHAT | extra).status_code == 200
    response = post(server, "/v1/chat/completions", CHAT | {"modalities": ["audio"]})
    assert response.json()["error"]["param"] == "modalities.0"


@pytest.mark.parametrize("whole", [True, False])
def test_answers_come_back_as_messages(whole: bool) -> None:
    """As objects of the client, or with every field that it knows, null for most."""
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    with says(call) as server, connect(server) as client:
        asked = {"model": "tiny", "tools": [WEATHER]}
        answer = client.chat.completions.create(messages=HELLO, **asked).choices[0].message
        assert answer.tool_calls
        back = answer.model_dump() if whole else answer
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"}
        client.chat.completions.create(messages=[*HELLO, back, result], **asked)


def test_the_template_knows_the_reasoning_effort() -> None:
    with running(template="{{ reasoning_effort | default('none') }}") as server:
        for asked, length in (({}, 4), ({"reasoning_effort": "medium"}, 6)):
            usage = post(server, "/v1/chat/completions", CHAT | asked).json()["usage"]
            assert usage["prompt_tokens"] == 1 + length


def test_a_load_test_goes_on_where_the_model_ends() -> None:
    executor = make_executor(says=(END,))
    with running(executor) as server:
        for asked, made, reason in (({}, 1, "stop"), ({"ignore_eos": True}, 5, "length")):
            body = COMPLETION | {"max_tokens": 5} | asked
            answer = post(server, "/v1/completions", body).json()
            assert answer["usage"]["completion_tokens"] == made
            assert answer["choices"][0]["finish_reason"] == reason
            assert answer["choices"][0]["text"] == ""


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_json_must_say_that_it_is_json(server: Running, kind: str | None) -> None:
    response = requests.post(
        server.url + "/v1/completions",
        data=json.dumps(COMPLETION).encode(),
        headers={"Content-Type": kind} if kind else {},
        timeout=PATIENCE,
    )
    assert response.status_code == 400
    assert f"Content-Type is {kind or 'nothing'}, not" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", '{"model": ' * 5000, "\xff", "[" * 100_000])
def test_what_is_not_json(server: Running, text: str) -> None:
    response = requests.post(
        server.url + "/v1/chat/completions",
        data=text.encode("latin-1"),
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE,
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_prompts_that_do_not_fit(server: Running, client: openai.OpenAI) -> None:
    for prompt in ("a" * 600, "a" * 100_000):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt=prompt)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "prompt"
    done = client.completions.create(model="tiny", prompt="a" * 500, max_tokens=1000)
    assert done.usage.total_tokens == 513  # the last token is known, but was not taken in
    assert done.choices[0].finish_reason == "length"


def test_what_is_not_there(server: Running) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
    ):
        response = requests.request(method, server.url + path, timeout=PATIENCE)
        assert response.status_code == status
        assert path in response.json()["error"]["message"]
    wrong = post(server, "/v1/completions", COMPLETION | {"model": "gpt-4"})
    assert wrong.status_code == 404
    assert wrong.json()["error"]["code"] == "model_not_found"


def test_models_without_a_template() -> None:
    with running(template=None) as server:
        response = post(server, "/v1/chat/completions", CHAT)
        assert response.status_code == 400
        assert "no chat template; use /v1/completions" in response.json()["error"]["message"]


def test_templates_that_refuse_or_never_end() -> None:
    for template in ("{{ raise_exception('no') }}", "{% for a in range(9999999999) %}{% endfor %}"):
        with running(template=template) as server:
            response = post(server, "/v1/chat/completions", CHAT)
            assert response.status_code == 400
            assert "the chat template" in response.json()["error"]["message"]
    with running(template="{{ messages[0].content }}") as server:
        response = post(server, "/v1/chat/completions", CHAT | {"tools": [WEATHER]})
        assert response.json()["error"]["param"] == "tools"
