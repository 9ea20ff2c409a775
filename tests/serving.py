"""A server for tests: the real application on the fake model, on a port of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import requests
import uvicorn
from fake_executor import WIDTH, FakeExecutor
from waiting import PATIENCE, wait_until

from hotloop.frontends.tokenizer import Tokenizer
from hotloop.runtime.engine import Engine
from hotloop.serve.app import Access, make_app
from hotloop.serve.metrics import Metrics
from hotloop.serve.served import Served

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>")
BYTES = 256
VOCAB = BYTES + len(SPECIAL)
END, BOS = BYTES + 1, BYTES + 2
LETTERS = tuple(b"abcdefgh ")
LONG = 100_000
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "tiny", "messages": HELLO}
COMPLETION = {"model": "tiny", "prompt": "a"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ByteCodec:
    """A token for every byte, and three more."""

    size = VOCAB

    def encode(self, text: str, special: bool) -> list[int]:
        out: list[int] = []
        while text:
            found = [at for at, word in enumerate(SPECIAL) if special and text.startswith(word)]
            if found:
                out.append(BYTES + found[0])
                text = text[len(SPECIAL[found[0]]) :]
            else:
                out += text[0].encode()
                text = text[1:]
        return out

    def piece(self, id: int) -> bytes:
        if id < BYTES:
            return bytes([id])
        return SPECIAL[id - BYTES].encode() if id < VOCAB else b""

    def whole_id(self, text: str) -> int | None:
        return BYTES + SPECIAL.index(text) if text in SPECIAL else None

    def is_special(self, id: int) -> bool:
        return BYTES <= id < VOCAB


def make_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    return Tokenizer(ByteCodec(), BOS, END, (END,), adds_bos=True, chat_template=template)


def make_executor(**options: object) -> FakeExecutor:
    """A fake model that writes letters, or what `says` has it say."""
    sizes = {"pages": 64, "page": 16, "rows": 4, "block": 32, "vocab": VOCAB, "says": LETTERS}
    return FakeExecutor(**(sizes | options))


def make_served(
    executor: FakeExecutor, *, template: str | None = TEMPLATE, queue: int = 50, context: int = 512
) -> Served:
    engine = Engine(executor, queue)
    return Served(
        "tiny",
        engine,
        make_tokenizer(template),
        context,
        VOCAB,
        created=1,
        metrics=Metrics(engine),
        width=WIDTH,
        weight_bytes=1000,
        bandwidth=1e6,
    )


@dataclass(frozen=True)
class Running:
    served: Served
    url: str
    executor: FakeExecutor

    def is_at_rest(self) -> bool:
        """Nothing runs or waits, so that what has run has given back what it had."""
        load = self.served.engine.load()
        return load.running == load.waiting == 0


@contextlib.contextmanager
def running(
    executor: FakeExecutor | None = None,
    access: Access | None = None,
    *,
    template: str | None = TEMPLATE,
    queue: int = 50,
    context: int = 512,
) -> Iterator[Running]:
    """The server, running in a thread until the block is left. All pages are free then."""
    executor = executor or make_executor()
    served = make_served(executor, template=template, queue=queue, context=context)
    served.engine.start()
    app = make_app(served, access or Access())
    config = uvicorn.Config(app, port=0, log_level="warning", ws="none", lifespan="off")
    listening = uvicorn.Server(config)
    thread = threading.Thread(target=listening.run)
    thread.start()
    try:
        wait_until(lambda: listening.started)
        port = listening.servers[0].sockets[0].getsockname()[1]
        server = Running(served, f"http://127.0.0.1:{port}", executor)
        yield server
        wait_until(server.is_at_rest)
        assert served.engine.load().pages_free == served.engine.load().pages
    finally:
        listening.should_exit = True
        thread.join()
        served.engine.close()


def endless(rows: int = 4, queue: int = 50) -> contextlib.AbstractContextManager[Running]:
    """A server that takes some minutes for `LONG` tokens: only who cancels sees their end."""
    executor = make_executor(pages=LONG // 10, rows=rows, pause=0.005)
    return running(executor, queue=queue, context=LONG + 1000)


def connect(server: Running, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE)


def says(text: str) -> Iterator[Running]:
    """A server whose model says `text` and then ends."""
    return running(make_executor(script=[*text.encode(), END]))


def post(server: Running, path: str, body: object, **options: object) -> requests.Response:
    return requests.post(server.url + path, json=body, timeout=PATIENCE, **options)
