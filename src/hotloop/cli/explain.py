"""hotloop explain: what the compiler made of a model."""

import json

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.loading import load_model


def explain(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    threads: options.Threads = None,
    context: options.Context = None,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    speculate: options.Speculate = 0,
    as_json: options.Json = False,
) -> None:
    """Show what a token costs, and what the passes did."""
    name = options.model_name(argument, model)
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
        explanation = loaded.explain()
    if as_json:
        print(json.dumps(explanation.to_json(), indent=2, ensure_ascii=False))
    else:
        stdout().print(explanation)
