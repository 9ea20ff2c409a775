"""The options that several commands share, as annotated types for their parameters."""

import secrets
import sys
from typing import Annotated, Any, Literal

import typer

from hotloop.util.errors import UsageError

MODEL_HELP = "A GGUF file, a Hugging Face folder or a pulled name (default: smollm2)."

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
]
ModelOption = Annotated[
    str | None, typer.Option("-m", "--model", help="The same, as an option.", show_default=False)
]
Prompt = Annotated[
    str | None,
    typer.Option("-p", "--prompt", help="The prompt; without it, stdin.", show_default=False),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "-n",
        "--max-tokens",
        min=-1,
        help="Tokens to generate; -1: until the end or a full context.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        min=1,
        max=1024,
        help="Threads in the team (default: what is lent to us).",
    ),
]
Context = Annotated[
    int | None,
    typer.Option("-c", "--context", min=1, help="Positions in the KV cache.", show_default=False),
]
#: The names of `hotloop.compiler.SCHEDULES`, which `--help` must not import.
Schedule = Annotated[
    Literal["ops", "fused", "looped", "pipelined", "tokens"],
    typer.Option("--schedule", help="The rung of the ladder: what one launch runs."),
]
Activations = Annotated[
    Literal["q8", "f32"],
    typer.Option("--activations", help="Precision of the inputs of quantised weights."),
]
KvCache = Annotated[
    Literal["f16", "q8", "f32"] | None,
    typer.Option(
        "--kv-cache",
        help="What keys and values are kept in; q8 takes half of f16 (default: f16, or f32 with "
        "--activations f32).",
        show_default=False,
    ),
]
#: The formats of `hotloop.ir.encode.ENCODED`.
Quantize = Annotated[
    Literal["q8_0", "q4_0", "q4_1"] | None,
    typer.Option(
        "--quantize", help="Round an unquantised model's matrices to this.", show_default=False
    ),
]
#: At most `hotloop.api.MAX_SPECULATED`.
Speculate = Annotated[
    int,
    typer.Option(
        "--speculate",
        min=0,
        max=15,
        metavar="K",
        help="Guess up to K tokens from the text so far, and check them at once; 0: off.",
    ),
]
Temperature = Annotated[
    float, typer.Option("--temp", min=0.0, help="Temperature; 0 takes the likeliest token.")
]
TopK = Annotated[int, typer.Option("--top-k", min=0, help="Keep the k likeliest; 0: all.")]
TopP = Annotated[
    float, typer.Option("--top-p", min=0.0, max=1.0, help="Keep the likeliest of this mass.")
]
MinP = Annotated[
    float,
    typer.Option("--min-p", min=0.0, max=1.0, help="Drop what is rarer than this × the likeliest."),
]
RepeatPenalty = Annotated[
    float, typer.Option("--repeat-penalty", min=0.01, help="Make recent tokens rarer; 1: off.")
]
Seed = Annotated[
    int, typer.Option("-s", "--seed", min=-1, help="Seed of the sampling; -1: a random one.")
]
System = Annotated[
    str | None, typer.Option("--system", help="A system message.", show_default=False)
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")
]
Stats = Annotated[
    bool | None,
    typer.Option(
        "--stats/--no-stats",
        help="Print speed to stderr (default: when it is a terminal).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def model_name(argument: str | None, option: str | None) -> str | None:
    """The model that was named, either way; None for the default one."""
    if argument is not None and option is not None:
        raise UsageError(f"two models, {argument} and {option}: give MODEL or -m, not both.")
    return argument if argument is not None else option


def sampling(
    max_tokens: int,
    temp: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    seed: int,
) -> dict[str, Any]:
    """The options as `Model.generate` calls them."""
    return {
        "max_tokens": None if max_tokens < 0 else max_tokens,
        "temperature": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": _chosen_seed(seed),
    }


def _chosen_seed(seed: int) -> int:
    """`seed` itself, or for -1 a random one, which goes to stderr so that it can be had again."""
    if seed >= 0:
        return seed
    seed = secrets.randbits(32)
    print(f"seed: {seed}", file=sys.stderr)
    return seed
