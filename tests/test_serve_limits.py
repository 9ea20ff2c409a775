"""Who may ask the server, and how much; clients that go away, and an engine that does."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import openai
import pytest
import requests
from serving import COMPLETION, LONG, Running, connect, endless, make_executor, running
from waiting import PATIENCE, wait_until

from hotloop.serve.app import Access
from hotloop.serve.server import LOCAL_HOSTS

# who may ask, and how much


def test_api_keys() -> None:
    with running(access=Access(keys=("right", "other"))) as server:
        assert requests.get(server.url + "/health", timeout=PATIENCE).ok
        refused = requests.get(server.url + "/v1/models", timeout=PATIENCE)
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert "wants an API key" in refused.json()["error"]["message"]
        with connect(server, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        for key in ("right", "other"):
            with connect(server, key) as client:
                assert client.models.list().data
        for path in ("/metrics", "/status", "/openapi.json", "/v1/x"):
            assert requests.get(server.url + path, timeout=PATIENCE).status_code == 401


def test_bodies_have_a_limit() -> None:
    with running(access=Access(body=1000)) as server:
        large = b'{"prompt": "' + b"a" * 2000 + b'"}'
        response = requests.post(server.url + "/tokenize", data=large, timeout=PATIENCE)
        assert response.status_code == 413
        chunked = requests.post(
            server.url + "/tokenize",
            data=iter([large[:900], large[900:]]),
            headers={"Content-Type": "application/json"},
            timeout=PATIENCE,
        )
        assert chunked.status_code == 413
        assert chunked.json()["error"]["message"].endswith("the body is larger than 1000 bytes.")


def test_origins_and_hosts() -> None:
    access = Access(origins=("https://a.example",), hosts=("127.0.0.1",))
    with running(access=access) as server:
        for origin, allowed in (("https://a.example", True), ("https://b.example", False)):
            response = requests.get(
                server.url + "/v1/models", headers={"Origin": origin}, timeout=PATIENCE
            )
            assert ("access-control-allow-origin" in response.headers) == allowed
        # What a page may send without asking first is not taken for a request.
        for media_type in ("text/plain", "application/x-www-form-urlencoded"):
            simple = requests.post(
                server.url + "/v1/completions",
                data=json.dumps(COMPLETION),
                headers={"Content-Type": media_type},
                timeout=PATIENCE,
            )
            assert simple.status_code == 400


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("127.0.0.1", True),
        ("LOCALHOST:80", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("127.0.0.1.evil.example:80", False),
        ("", False),
        (":80", False),
    ],
)
def test_a_local_server_answers_to_local_names(host: str, right: bool) -> None:
    with running(access=Access(hosts=LOCAL_HOSTS)) as server:
        answer = requests.get(server.url + "/v1/models", headers={"Host": host}, timeout=PATIENCE)
    assert (answer.status_code == 200) == right
    if not right:
        assert answer.json()["error"]["code"] == "wrong_host"


def test_more_than_it_ever_takes() -> None:
    """Errors of the engine, too, name a field."""
    with running(make_executor(rows=1, pages=2, page=16), queue=1) as server:
        for extra, param in (
            ({"n": 9}, "n"),
            ({"prompt": ["a"] * 9}, "prompt"),
            ({"max_tokens": 400}, "max_tokens"),
            ({"prompt": "a\ud800"}, "prompt"),
        ):
            url = server.url + "/v1/completions"
            answer = requests.post(url, json=COMPLETION | extra, timeout=PATIENCE)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_full_queue_says_when_to_come_back() -> None:
    with endless(rows=1, queue=1) as server, connect(server) as client:
        streams = [
            client.completions.create(model="tiny", prompt="a", max_tokens=LONG, stream=True)
            for _ in range(2)
        ]
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt="a")
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "queue_full"
        for stream in streams:
            stream.close()
        wait_until(server.is_at_rest)
        assert client.completions.create(model="tiny", prompt="a").choices


# clients that go away, and the engine that does


def test_clients_that_go_away_end_their_sequences() -> None:
    with endless() as server:
        engine = server.served.engine
        for stream in (True, False):
            body = json.dumps(COMPLETION | {"max_tokens": LONG, "stream": stream})
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
            connection.request(
                "POST", "/v1/completions", body, {"Content-Type": "application/json"}
            )
            wait_until(lambda: engine.load().running == 1)
            made = engine.load().output_tokens
            wait_until(lambda made=made: engine.load().output_tokens > made)
            connection.close()
            wait_until(server.is_at_rest)
            assert engine.load().output_tokens < LONG


def test_a_body_that_never_comes(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.05)
    assert requests.get(server.url + "/health", timeout=PATIENCE).ok


def test_closing_tells_the_streams() -> None:
    with endless() as server, connect(server) as client:
        stream = client.completions.create(model="tiny", prompt="a", max_tokens=LONG, stream=True)
        next(stream)
        closing = threading.Thread(target=server.served.engine.close)
        closing.start()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        closing.join()
        assert requests.get(server.url + "/health", timeout=PATIENCE).status_code == 503
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt="a")


def test_metrics_and_status(server: Running, client: openai.OpenAI) -> None:
    client.completions.create(model="tiny", prompt="abc", max_tokens=5)
    text = requests.get(server.url + "/metrics", timeout=PATIENCE).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["hotloop_output_tokens_total"]) >= 5
    assert float(values["hotloop_time_to_first_token_seconds_count"]) >= 1
    assert float(values['hotloop_requests_total{path="/v1/completions",status="200"}']) >= 1
    status = requests.get(server.url + "/status", timeout=PATIENCE).json()
    assert status["model"] == "tiny"
    assert status["memory_tokens_per_second"] == 1000
    assert status["load"]["pages"] == 64
