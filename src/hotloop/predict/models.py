"""The model to predict: from a bundled config, a `config.json`, or a file with its weights."""

import difflib
from pathlib import Path

from hotloop.frontends.config_only import bundled, open_bundled, open_config
from hotloop.frontends.decoder import Decoder
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.store import MODELS, resolve
from hotloop.util.errors import UsageError


def open_shapes(name: str, weights: str | None = None) -> Decoder:
    """The decoder called `name`; its tensors may have no bytes.

    `name` is a bundled config's, the path of a `config.json`, a GGUF file or a Hugging Face folder,
    or a model that `hotloop run` knows. `weights` stores the matrices in another format, which only
    configs allow. Raises `UsageError` for a name that is none of these.
    """
    if name in bundled():
        return open_bundled(name, weights)
    path = Path(name)
    if path.suffix == ".json":
        return open_config(path, weights)
    if weights is not None:
        raise UsageError(
            f"--weights {weights} needs a model that has none of its own: a bundled config or a "
            "config.json."
        )
    if name not in MODELS and not path.exists() and not name.startswith("hf:"):
        close = difflib.get_close_matches(name, bundled(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"configs: {', '.join(bundled())}."
        raise UsageError(f"no model, config or file is called {name!r}; {hint}")
    return decoder(open_model(resolve(name)))
