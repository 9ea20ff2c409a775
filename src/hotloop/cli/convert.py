"""hotloop convert: a model packed once, so that later starts need no packing."""

from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.progress import progress_bar


def convert(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")
    ],
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    quantize: options.Quantize = None,
) -> None:
    """Write a model in packed form, for faster starts.

    The file holds everything, tokenizer included, and is used in place of the original. A later
    version of hotloop may ask for it to be made again: keep the original.
    """
    from hotloop.frontends.models import decoder
    from hotloop.frontends.open_file import open_model
    from hotloop.frontends.packed_file import write_packed_file
    from hotloop.frontends.quantised import quantised
    from hotloop.frontends.store import resolve

    with progress_bar() as progress:
        path = resolve(options.model_name(argument, model), progress)
        made = decoder(open_model(path))
        if quantize is not None:
            made = quantised(made, quantize)
        write_packed_file(made, output, progress)
    print(output)
