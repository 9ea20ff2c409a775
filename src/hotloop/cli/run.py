"""hotloop run: one prompt in, a stream of text out."""

import sys

import typer

from hotloop.cli import options
from hotloop.cli.loading import load_model
from hotloop.cli.stream import INTERRUPTED, print_stats, stream
from hotloop.util.errors import UsageError


def run(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    prompt: options.Prompt = None,
    max_tokens: options.MaxTokens = 128,
    threads: options.Threads = None,
    context: options.Context = None,
    temp: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repeat_penalty: options.RepeatPenalty = 1.0,
    seed: options.Seed = 0,
    system: options.System = None,
    raw: options.Raw = False,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    speculate: options.Speculate = 0,
    stats: options.Stats = None,
) -> None:
    """Answer one prompt, as a stream of text on stdout.

    The model's chat template is applied where it has one; --raw continues the text as it stands.
    """
    name = options.model_name(argument, model)
    if raw and system is not None:
        raise UsageError("--raw takes the text as it stands: it has no place for --system.")
    text = _read_prompt(prompt)
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
        sampling = options.sampling(max_tokens, temp, top_k, top_p, min_p, repeat_penalty, seed)
        if raw or not loaded.has_chat_template:
            if system is not None:
                raise UsageError(f"{loaded.path} has no chat template: no place for --system.")
            tokens = loaded.generate(text, **sampling)
        else:
            messages = [{"role": "user", "content": text}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            tokens = loaded.chat(messages, **sampling)
        done = stream(tokens)
        if stats if stats is not None else sys.stderr.isatty():
            print_stats(done, loaded)
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        raise UsageError("no prompt: give -p TEXT, or pipe the text in.")
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on stdin is not UTF-8 (byte {error.start}).") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise UsageError("the prompt on stdin is empty: give -p TEXT, or pipe some text in.")
    return text
