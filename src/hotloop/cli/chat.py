"""hotloop chat: a conversation in the terminal."""

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import options
from hotloop.cli.files import write_text
from hotloop.cli.loading import load_model
from hotloop.cli.stream import print_stats, stream
from hotloop.util.errors import ContextError, TemplateError, UsageError

if TYPE_CHECKING:
    from hotloop.api import Model

HELP = """\
/system TEXT  tell the model how to behave (no TEXT: take it back)
/reset        forget the conversation, keep the system message
/save FILE    write the conversation as JSON
/exit         leave (also Ctrl-D); Ctrl-C stops a reply"""


def chat(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    max_tokens: options.MaxTokens = -1,
    threads: options.Threads = None,
    context: options.Context = None,
    temp: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repeat_penalty: options.RepeatPenalty = 1.0,
    seed: options.Seed = 0,
    system: options.System = None,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    speculate: options.Speculate = 0,
    stats: options.Stats = None,
) -> None:
    """Talk with a model in the terminal."""
    name = options.model_name(argument, model)
    sampling = options.sampling(max_tokens, temp, top_k, top_p, min_p, repeat_penalty, seed)
    with load_model(
        name,
        threads,
        schedule,
        activations,
        context,
        kv_cache=kv_cache,
        quantize=quantize,
        speculate=speculate,
    ) as loaded:
        if not loaded.has_chat_template:
            raise UsageError(f"{loaded.path} has no chat template: use hotloop run --raw.")
        show_stats = stats if stats is not None else sys.stderr.isatty()
        _Chat(loaded, sampling, show_stats, system or "").loop()


def _is_text(line: str) -> bool:
    """Whether it holds none of the bytes that stand for what could not be decoded."""
    return not any("\udc80" <= character <= "\udcff" for character in line)


@dataclass
class _Chat:
    """The conversation so far, and what each typed line does to it."""

    model: "Model"
    sampling: Mapping[str, Any]
    stats: bool
    system: str
    turns: list[dict[str, str]] = field(default_factory=list)

    def loop(self) -> None:
        """Until /exit or the end of the input."""
        terminal = sys.stdin.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # a bad byte costs its line alone
        if terminal:
            import readline  # noqa: F401  (makes input() edit lines and remember them)

            print("Type a message, or /help; Ctrl-D leaves.", file=sys.stderr)
        while True:
            try:
                line = input("> " if terminal else "").strip()
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            except EOFError:
                if terminal:
                    print(file=sys.stderr)
                return
            if line == "/exit":
                return
            if not _is_text(line):
                print("error: that line is not UTF-8; give it again.", file=sys.stderr)
            elif line.startswith("/"):
                self._command(line)
            elif line:
                self._reply(line)

    @property
    def messages(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.turns

    def _reply(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})
        try:
            done = stream(self.model.chat(self.messages, **self.sampling))
        except ContextError as error:
            self.turns.pop()
            print(f"error: {error} /reset starts over.", file=sys.stderr)
            return
        except TemplateError as error:
            self.turns.pop()
            print(f"error: {error}", file=sys.stderr)
            return
        self.turns.append({"role": "assistant", "content": done.text})
        if self.stats:
            print_stats(done, self.model, loading=False)

    def _command(self, line: str) -> None:
        commands: dict[str, Callable[[str], str]] = {
            "/help": lambda rest: HELP,
            "/system": self._set_system,
            "/reset": self._reset,
            "/save": self._save,
        }
        word, _, rest = line.partition(" ")
        if word in commands:
            print(commands[word](rest.strip()), file=sys.stderr)
        else:
            print(f"there is no {word}; /help lists what there is.", file=sys.stderr)

    def _set_system(self, text: str) -> str:
        self.system = text
        return "system message set." if text else "no system message any more."

    def _reset(self, rest: str) -> str:
        self.turns.clear()
        return "the conversation is forgotten."

    def _save(self, name: str) -> str:
        if not name:
            return "/save needs the name of a file."
        path = Path(name).expanduser()
        text = json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n"
        try:
            write_text(path, text)
        except UsageError as error:
            return f"error: {error}"
        return f"{len(self.messages)} messages saved to {path}."
