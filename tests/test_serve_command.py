"""hotloop serve as a process: what it prints, what it answers, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import requests
import trustme
from waiting import PATIENCE, wait_until

import hotloop
from hotloop.cli.main import main
from hotloop.util.errors import UsageError

PROMPT = "The capital of France is"


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its URL, and the command that it prints."""
    command = [sys.executable, "-m", "hotloop", "serve", str(model), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield process, url, process.stdout.readline().strip()
        finally:
            process.kill()


def port_that_nobody_is_given() -> int:
    """A free port below those that the system hands out, which nobody takes by accident."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


def test_it_answers_like_the_library_and_ends_well(
    default_model: Path, smollm: hotloop.Model
) -> None:
    wanted = "".join(token.text for token in smollm.generate(PROMPT, max_tokens=24))
    options = ["--context", "512", "--name", "it's", "--grace", "300"]
    with serving(default_model, *options) as (process, url, curl):
        assert url.startswith("http://127.0.0.1:")
        if shutil.which("curl"):
            said = subprocess.run(
                curl, shell=True, capture_output=True, text=True, timeout=PATIENCE
            )
            assert '"role":"assistant"' in said.stdout, said
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            asked = {"model": "it's", "prompt": PROMPT, "temperature": 0}
            done = client.completions.create(**asked, max_tokens=24)
            assert done.choices[0].text == wanted
            stream = client.completions.create(**asked, max_tokens=200, stream=True)
            first = next(stream).choices[0].text
            process.send_signal(signal.SIGTERM)
            rest = "".join(chunk.choices[0].text for chunk in stream)
            assert len(first + rest) > len(wanted)
            assert (first + rest).startswith(wanted)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert "capital" not in out + err
        assert '"POST /v1/completions HTTP/1.1" 200' in out + err
        assert err.endswith("stopped.\n")


def test_no_grace_cancels(default_model: Path) -> None:
    with serving(default_model, "--context", "512", "--grace", "0") as (process, url, _):
        name = requests.get(url + "/v1/models", timeout=PATIENCE).json()["data"][0]["id"]
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(
                model=name, prompt=PROMPT, max_tokens=400, temperature=0, stream=True
            )
            next(stream)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_kill_9_loses_nothing_but_the_streams(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once while machine code is put into the cache, once in the middle of an answer."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    code, body = tmp_path / "code", {"prompt": PROMPT, "temperature": 0}
    command = [sys.executable, "-m", "hotloop", "serve", str(default_model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as starting:
        wait_until(lambda: code.is_dir() and any(code.iterdir()))
        starting.kill()
    options = ["--context", "512", "--port", str(port_that_nobody_is_given())]
    with serving(default_model, *options) as (process, url, _):
        said = requests.post(url + "/v1/completions", json=body, timeout=PATIENCE).json()
        asked = body | {"stream": True, "max_tokens": 500}
        with requests.post(
            url + "/v1/completions", json=asked, stream=True, timeout=PATIENCE
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith(b"data: ")
            process.kill()
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(lines)
    with serving(default_model, *options) as (_, again, _):
        assert again == url
        found = requests.post(url + "/v1/completions", json=body, timeout=PATIENCE).json()
        assert found["choices"] == said["choices"]
        load = requests.get(url + "/status", timeout=PATIENCE).json()["load"]
        assert load["pages_free"] == load["pages"]


def test_tls(default_model: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    trusted, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(trusted))
    own.cert_chain_pems[0].write_to_path(str(certificate))
    own.private_key_pem.write_to_path(str(key))
    options = ["--context", "512", "--tls-cert", str(certificate), "--tls-key", str(key)]
    with serving(default_model, *options) as (_, url, curl):
        assert url.startswith("https://127.0.0.1:")
        found = requests.get(url + "/health", verify=str(trusted), timeout=PATIENCE)
        assert found.json() == {"status": "ok"}
        body = {"prompt": PROMPT, "stream": True}
        stream = requests.post(
            url + "/v1/completions", json=body, verify=str(trusted), timeout=PATIENCE
        )
        assert stream.text.endswith("data: [DONE]\n\n")
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(url + "/health", timeout=PATIENCE)  # nobody vouches for this certificate
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.get(url.replace("https", "http") + "/health", timeout=PATIENCE)
        if shutil.which("curl"):
            said = subprocess.run(
                curl, shell=True, capture_output=True, text=True, timeout=PATIENCE
            )
            assert '"role":"assistant"' in said.stdout, said


def test_a_key_that_is_not_the_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = trustme.CA()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.issue_cert("127.0.0.1").cert_chain_pems[0].write_to_path(str(certificate))
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(str(key))
    for other in (key, Path(__file__)):
        options = ["--tls-cert", str(certificate), "--tls-key", str(other)]
        assert main(["serve", "--port", "0", *options]) == 2
        assert f"{certificate} and {other} are no certificate and its key" in (
            capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert", __file__], "TLS needs both --tls-cert and --tls-key."),
        (["--api-key-file", "nowhere.txt"], "there is no file nowhere.txt."),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1 port {port}: address already in use; give another" in said


def test_a_key_file_without_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys").write_text("\n \n")
    assert main(["serve", "--port", "0", "--api-key-file", str(tmp_path / "keys")]) == 2
    assert "has no API key; write one on a line." in capsys.readouterr().err


def test_the_model_is_loaded_as_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, object] = {}

    def load(name: str, **options: object) -> hotloop.Model:
        asked.update(options, name=name)
        raise UsageError("that was all.")

    monkeypatch.setattr("hotloop.api.load", load)
    options = ["--quantize", "q4_0", "--speculate", "3", "--kv-cache", "q8", "--context", "77"]
    assert main(["serve", "folder", "--port", "0", *options]) == 2
    assert "that was all." in capsys.readouterr().err
    wanted = {"quantize": "q4_0", "speculate": 3, "kv_cache": "q8", "context": 77}
    assert {name: asked[name] for name in wanted} == wanted
