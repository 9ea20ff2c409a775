"""hotloop inspect: what a model file holds."""

import json

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.progress import progress_bar


def inspect(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    as_json: options.Json = False,
) -> None:
    """Show what a model file holds, and whether it runs.

    Metadata, tensors, formats, bytes per token; also of files that hotloop cannot run.
    """
    from hotloop.frontends.store import resolve
    from hotloop.report.inspection import inspect as look

    with progress_bar() as progress:
        inspection = look(resolve(options.model_name(argument, model), progress))
    if as_json:
        print(json.dumps(inspection.to_json(), indent=2, ensure_ascii=False))
    else:
        stdout().print(inspection)
