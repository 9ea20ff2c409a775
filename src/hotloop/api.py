"""The Python API: a model file becomes something that generates.

from hotloop import load

with load() as model:
    for token in model.generate("The capital of France is", max_tokens=8):
        print(token.text, end="")
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.arena import check_available
from hotloop.backends.cpu.executable import Executable, SequenceState, Weights
from hotloop.backends.cpu.places import place_states, place_weights
from hotloop.backends.cpu.profile import Events
from hotloop.backends.cpu.team import Team
from hotloop.compiler import Compiled, compile_graph
from hotloop.frontends.chat_template import render_conversation
from hotloop.frontends.config import Config
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.models import decoder as open_decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.quantised import quantised
from hotloop.frontends.store import resolve
from hotloop.frontends.tokenizer import Tokenizer
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.ir.encode import ENCODED
from hotloop.ir.graph import Graph
from hotloop.ir.program import Program
from hotloop.machine.host import available_threads, host
from hotloop.report.explain import Explanation, explain
from hotloop.report.profile import sites
from hotloop.runtime.batch import BatchExecutor
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.session import PROMPT_BLOCK, Session, Speculation, prompt_block
from hotloop.util import settings
from hotloop.util.collector import collected_once
from hotloop.util.errors import ContextError, UnsupportedError, UsageError
from hotloop.util.remarks import Remark

#: The default context is the model's own, up to this: its cache is memory that few prompts need.
DEFAULT_CONTEXT = 8192
ACTIVATIONS = ("q8", "f32")
KV_CACHE = ("f16", "q8", "f32")
WAKE = ("parked", "spinning")
#: Bytes of weights from which on a step takes so long that even a short prompt is worth a program
#: of its own; and packing them takes so long that compiling it costs little more.
LARGE = 256 << 20
#: Guesses that one step checks, at most: with more, a step takes several times as long.
MAX_SPECULATED = 15

Progress = Callable[[int, int | None, str], None]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Token:
    """A token as it is generated: its id, and the text that it completes.

    The text is empty for a token that ends the generation, and where a character needs more.
    """

    id: int
    text: str


@dataclass(frozen=True)
class Timings:
    """Seconds of getting ready: opening the file, packing the weights, compiling the decode program
    (which goes on beside packing).

    `cached` says that the machine code came from disk.
    """

    load: float
    pack: float
    compile: float
    cached: bool


def load(
    name: str | Path | None = None,
    threads: int | None = None,
    schedule: str = "tokens",
    activations: str = "q8",
    context: int | None = None,
    *,
    kv_cache: str | None = None,
    wake: str | None = None,
    quantize: str | None = None,
    speculate: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> "Model":
    """Load a model: a GGUF file, a packed file (`hotloop convert`), a Hugging Face folder, or a
    name (None: the default model).

    threads       size of the team; None: what affinity and cgroup quota grant
    schedule      the rung of the ladder: ops, fused, looped, pipelined or tokens
    activations   "q8" rounds the inputs of quantised weights to 8 bit; "f32" keeps float32
    context       positions of the KV cache; None: the model's own, up to 8,192
    kv_cache      "f16", "f32", or "q8": 8-bit codes, half the memory of f16; None: float32 where
                  the activations are, else float16
    wake          "parked" or "spinning" threads between launches; None: HOTLOOP_WAKE
    quantize      round the matrices of an unquantised model to q8_0, q4_0 or q4_1; None: leave them
    speculate     tokens that are guessed and checked in one pass over the model, at most
                  `MAX_SPECULATED`; the output stays the same, bit for bit
    progress      called with (bytes done, bytes in all or None, what) during long work

    Raises a `HotloopError` whose message says what is wrong and what to do.
    """
    started = time.perf_counter()
    settings.check_environment()
    _check_choice("activations", activations, ACTIVATIONS)
    if kv_cache is not None:
        _check_choice("kv_cache", kv_cache, KV_CACHE)
    wake = wake or settings.WAKE.get()
    _check_choice("wake", wake, WAKE)
    _check_speculated(speculate)
    if quantize is not None:
        _check_choice("quantize", quantize, ENCODED)
    path = resolve(None if name is None else str(name), progress)
    file = open_model(path)
    decoder = open_decoder(file)
    if quantize is not None:
        if file.packed:
            raise UsageError(f"{path} is packed already; quantise the file it was made from.")
        decoder = quantised(decoder, quantize)
    step = Step(
        context=_context(decoder.config, context), activations=activations, kv_cache=kv_cache
    )
    graph = decoder.graph(step)
    team = Team(threads or settings.THREADS.get() or available_threads(), wake)
    opened = time.perf_counter()
    with ThreadPoolExecutor(1) as beside, ExitStack() as failing:
        failing.callback(team.close)
        check_available(place_weights(graph).nbytes + place_states(graph).nbytes, "this model")
        weights = Weights(graph)
        failed = threading.Event()
        failing.callback(failed.set)

        def report(done: int, total: int | None, what: str) -> None:
            if failed.is_set():
                raise CancelledError  # nobody needs the rest of the weights
            progress(done, total, what)

        def pack() -> float:
            weights.fill(
                lambda name: decoder.weight(name, step).data,
                team.threads,
                report,
                decoder.release,
                file.packed,
            )
            return time.perf_counter()

        # Code depends on where weights lie and not on what they are: it is compiled meanwhile. The
        # interpreter first traces programs, for which LLVM waits, and then builds the tokenizer;
        # in two threads at once it would do both more slowly.
        packing = beside.submit(pack)
        model = Model(path, None, decoder, step, schedule, weights, team, speculate=speculate)
        if weights.region.nbytes >= LARGE:
            model.compile_prompts()
        with collected_once():
            model.tokenizer = load_tokenizer(file)
        packed = packing.result()
        model._wait()
        failing.pop_all()
    model.timings = replace(model.timings, load=opened - started, pack=packed - opened)
    return model


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(f"{what} is {value!r}; it must be one of {', '.join(choices)}.")


def _check_speculated(tokens: int) -> None:
    if not 0 <= tokens <= MAX_SPECULATED:
        raise UsageError(f"speculate is {tokens}; it must be from 0 (off) to {MAX_SPECULATED}.")


def _context(config: Config, asked: int | None) -> int:
    if asked is None:
        return min(config.context, DEFAULT_CONTEXT)
    if not 1 <= asked <= config.context:
        raise ContextError(
            f"a context of {asked} is not possible; this model was made for 1 to {config.context}."
        )
    return asked


class Model:
    """A loaded model. One generation runs at a time; starting another ends the one before.

    `path`, `tokenizer` (None where the files have none), `decoder` and `config` describe it;
    `program` is what a decode launch runs, `stages` that program after each pass by name,
    `remarks` what the passes had to say; `speculate` is how many tokens a step guesses;
    `finish_reason` tells how the last generation ended: length, stop or cancelled.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer | None,
        decoder: Decoder,
        step: Step,
        schedule: str,
        weights: Weights,
        team: Team,
        timings: Timings = Timings(0.0, 0.0, 0.0, cached=False),
        *,
        speculate: int = 0,
        profile_tokens: int = 0,
    ) -> None:
        started = time.perf_counter()
        self.path = path
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.schedule = schedule
        self._step = step
        self._weights = weights
        self._team = team
        self.speculate = min(speculate, step.context - 1)
        self.graph: Graph = decoder.graph(
            replace(step, tokens=1 + self.speculate, speculates=self.speculate > 0)
        )
        self.stages: dict[str, Program] = {}
        self._compiled: Compiled = compile_graph(
            self.graph, host(team.threads), schedule, after_pass=self.stages.__setitem__
        )
        self._state = SequenceState(self.graph)
        events = profile_tokens * len(sites(self.program)) if profile_tokens else 0
        self._decode = Executable(self.program, weights, self._state, team, profile_events=events)
        self.timings = replace(timings, compile=time.perf_counter() - started)
        self._session = Session(
            self._state,
            self._decode,
            lambda: self._prompt_program,
            prompt_block(decoder.config),
            step.context,
            decoder.config.vocab,
        )

    def _wait(self) -> "Model":
        """This model, once its code is compiled, which threads go on with after `__init__`."""
        code = self._decode.wait()
        seconds = self.timings.compile + code.seconds
        self.timings = replace(self.timings, compile=seconds, cached=code.cached)
        return self

    def compile_prompts(self) -> None:
        """Begin to compile the program that reads prompts, for which the first prompt waits."""
        self._session.prepare()

    @cached_property
    def _prompt_program(self) -> Executable:
        """The program that reads prompts, compiled when the first prompt needs it."""
        tokens = prompt_block(self.config)
        graph = self.decoder.graph(replace(self._step, tokens=tokens, head=False))
        compiled = compile_graph(graph, host(self.threads), self.schedule)
        return Executable(compiled.program, self._weights, self._state, self._team)

    @cached_property
    def _scoring_program(self) -> Executable:
        """The program that reads prompts and gives the logits after every token."""
        graph = self.decoder.graph(replace(self._step, tokens=PROMPT_BLOCK))
        compiled = compile_graph(graph, host(self.threads), self.schedule)
        return Executable(compiled.program, self._weights, self._state, self._team)

    @property
    def weights(self) -> Weights:
        """The packed weights: probes read them that are to be compared with a program."""
        return self._weights

    @property
    def config(self) -> Config:
        return self.decoder.config

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def activations(self) -> str:
        return self._step.activations

    @property
    def kv_cache(self) -> str:
        """What the KV cache holds: "f16", "f32" or "q8"."""
        return self._step.kv_cache or self._step.cache_format

    @property
    def context(self) -> int:
        return self._step.context

    @property
    def wake(self) -> str:
        return self._team.wake

    @property
    def program(self) -> Program:
        return self._compiled.program

    @property
    def remarks(self) -> tuple[Remark, ...]:
        return self._compiled.remarks

    @property
    def code_bytes(self) -> int:
        """Size of the decode program's object file."""
        return self._decode.wait().object_bytes

    @property
    def speculation(self) -> Speculation:
        """What came of the guesses of the last generation; zeros where `speculate` is 0."""
        return self._session.speculation

    @property
    def finish_reason(self) -> str:
        return self._session.finish_reason

    # text and tokens

    def _text(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UnsupportedError(f"{self.path} has no tokenizer; give token ids instead of text.")
        return self.tokenizer

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`, without BOS; with `special`, special tokens in it are recognised."""
        return self._text().encode(text, special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._text().decode(ids)

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of `text` as a prompt: BOS first, where the model's file says so."""
        tokenizer = self._text()
        ids = tokenizer.encode(text)
        if tokenizer.adds_bos and tokenizer.bos_id is not None:
            return [tokenizer.bos_id, *ids]
        return ids

    def _ids(self, text_or_ids: str | Sequence[int]) -> list[int]:
        if isinstance(text_or_ids, str):
            return self.prompt_ids(text_or_ids)
        return [int(token) for token in text_or_ids]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation, as the model's files name them."""
        return self.tokenizer.stop_ids if self.tokenizer else self.decoder.stop_ids

    # chat

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer is not None and self.tokenizer.chat_template is not None

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The messages ({"role": …, "content": …}) as the model's template writes them."""
        if not self.has_chat_template:
            raise UnsupportedError(f"{self.path} has no chat template; use generate.")
        return render_conversation(
            self._text(), messages, add_generation_prompt=add_generation_prompt
        )

    def chat(self, messages: Sequence[Message], **options: Any) -> Generator[Token, None, None]:
        """Generate the next message; `options` as for `generate`."""
        text = self.render_chat(messages)
        ids = self.tokenize(text)
        bos = self._text().bos_id
        if self._text().adds_bos and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        return self.generate(ids, **options)

    # generation

    def generate(
        self,
        text_or_ids: str | Sequence[int],
        max_tokens: int | None = 128,
        temperature: float = 0.0,
        seed: int = 0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        stop_ids: Sequence[int] | None = None,
    ) -> Generator[Token, None, None]:
        """Yield tokens as they come, at most `max_tokens`, or (None) what the context still holds.

        `stop_ids` None means the model's own; a token that stops the generation is the last one
        yielded, without text. Closing the iterator cancels the launch at its next token.
        The arguments are checked at once, the generation starts with the first `next`.
        """
        ids = self._ids(text_or_ids)
        sampling = Sampling(
            temperature,
            seed,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            repeat_last_n,
            tuple(self.stop_ids if stop_ids is None else stop_ids),
        )
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}; it must be at least 0.")
        self._session.check(ids)
        return self._generate(ids, self.context if max_tokens is None else max_tokens, sampling)

    def _generate(
        self, ids: list[int], max_tokens: int, sampling: Sampling
    ) -> Generator[Token, None, None]:
        if max_tokens == 0:
            return
        self._session.start(ids, max_tokens, sampling)
        text = self.tokenizer.stream() if self.tokenizer else None
        for token in self._session.stream():
            if text is None or token in sampling.stop_ids:
                yield Token(token, "")
            else:
                yield Token(token, text.push(token))
        if text is not None and (rest := text.flush()):
            yield Token(token, rest)  # a character that the last token left incomplete

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """float32 [len(ids), vocab]: the logits after each of the tokens, as they stand."""
        return self._session.logits(self._ids(list(ids)))

    def each_logits(self, ids: Sequence[int], first: int = 0) -> Iterator[NDArray[np.float32]]:
        """float32 [vocab] after each of the tokens from index `first` on; the others go before.

        The same bits as those of `logits`, several times as fast.
        """
        for block in self._session.score(self._ids(list(ids)), first, self._scoring_program):
            yield from block

    def trace(self, ids: Sequence[int]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Each value of the last token's step, by its name in the graph (schedule ops only)."""
        if self.schedule != "ops":
            raise UsageError("values can be seen between launches only: load with schedule='ops'.")
        return self._session.trace(self._ids(list(ids)))

    def batch(
        self, rows: int, pages: int | None = None, schedule: str | None = None
    ) -> BatchExecutor:
        """An executor for up to `rows` sequences at a time, on these weights and threads.

        Its cache has `pages` pages (None: as many as all rows can fill); `schedule` is its rung
        (None: this model's). It guesses as this model does (`speculate`) where a sequence is alone.
        It and this model take turns at the threads.
        """
        if rows < 1:
            raise UsageError(f"a batch of {rows} is not possible; it must be at least 1.")
        return BatchExecutor(
            self.decoder,
            self._step,
            schedule or self.schedule,
            self._weights,
            self._team,
            rows,
            rows * self._step.chunks if pages is None else pages,
            self.speculate,
        )

    # measurement

    def time_decode(self, ids: Sequence[int], n: int) -> float:
        """Seconds for `n` tokens after the prompt `ids`, which is read before the clock starts."""
        self._session.check(ids, n)
        self._session.start(list(ids), n, Sampling())
        started = time.perf_counter()
        self._session.run()
        return time.perf_counter() - started

    def time_prompt(self, ids: Sequence[int]) -> float:
        """Seconds to read the prompt and to have its first token."""
        self._session.check(ids)
        self._session.prefill(ids)  # so that nothing is compiled while the clock runs
        self._session.forget()
        started = time.perf_counter()
        self._session.start(list(ids), 1, Sampling())
        self._session.run()
        return time.perf_counter() - started

    def with_schedule(self, schedule: str, wake: str | None = None) -> "Model":
        """This model on another rung of the ladder: the same weights, the same threads."""
        if wake is not None:
            _check_choice("wake", wake, WAKE)
            self._team.set_wake(wake)
        return self._again(schedule, self._step)

    def with_activations(self, activations: str) -> "Model":
        """This model with other activations ("q8" or "f32"): the same weights and threads."""
        _check_choice("activations", activations, ACTIVATIONS)
        return self._again(self.schedule, replace(self._step, activations=activations))

    def with_speculate(self, speculate: int) -> "Model":
        """This model guessing as many tokens in a step (0: none): the same weights and threads."""
        _check_speculated(speculate)
        return self._again(self.schedule, self._step, speculate=speculate)

    def profiled(self, tokens: int) -> "Model":
        """This model with code that notes its time stamps, and room for those of `tokens` tokens.

        `events` has them after a generation; `report.profile` adds them up.
        """
        return self._again(self.schedule, self._step, profile_tokens=tokens)

    def events(self) -> Events:
        """backends.cpu.profile.EVENT [threads, n]: what each thread noted in the last generation.

        Raises `UsageError` on a model that is not `profiled`.
        """
        if self._decode.recorder is None:
            raise UsageError("this model's code has no time stamps; use model.profiled(tokens).")
        return self._decode.recorder.events()

    def _again(
        self,
        schedule: str,
        step: Step,
        *,
        speculate: int | None = None,
        profile_tokens: int = 0,
    ) -> "Model":
        return Model(
            self.path,
            self.tokenizer,
            self.decoder,
            step,
            schedule,
            self._weights,
            self._team,
            self.timings,
            speculate=self.speculate if speculate is None else speculate,
            profile_tokens=profile_tokens,
        )._wait()

    def set_wake(self, wake: str) -> None:
        """Whether threads park or spin between launches, from the next one on."""
        _check_choice("wake", wake, WAKE)
        self._team.set_wake(wake)

    def explain(self) -> Explanation:
        """What the compiler made of this model, rung by rung."""
        return explain(self)

    def close(self) -> None:
        """End the threads; the model can no longer be used."""
        self._session.stop()
        self._team.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
