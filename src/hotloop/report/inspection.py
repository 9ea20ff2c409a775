"""inspect: what a model file holds, what a token reads of it, and whether hotloop runs it.

Bytes per token follow from names and shapes alone, so they are there for files that cannot be run,
too: of an embedding a row, of experts as many as a token chooses, everything else whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.frontends.decoder import Step
from hotloop.frontends.inventory import Inventory, Stored, take_inventory
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.tokenizer_files import load_tokenizer
from hotloop.util.errors import HotloopError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight", "gpt_neox.embed_in.weight")
_HEADS = ("output.weight", "lm_head.weight", "embed_out.weight")
_EXPERTS = ("_exps.", ".experts.")
"""In names of tensors that only the experts which a token chooses need."""
_CHOSEN = ("expert_used_count", "num_experts_per_tok", "num_experts_per_token")
_THERE_ARE = ("expert_count", "num_local_experts", "num_experts", "n_routed_experts")
_LONGEST_LIST = 16
"""Elements of a list in the metadata that JSON shows; vocabularies have many more."""


@dataclass(frozen=True)
class TextReport:
    """The tokenizer: how many tokens, what prompts start with, what ends a generation."""

    tokens: int
    bos: str | None
    stops: tuple[str, ...]
    chat_template: bool


@dataclass(frozen=True)
class Group:
    """Tensors that differ in the numbers in their names only.

    `name` has N for each number; `layers` tells the first ones, such as "0–3, 7".
    """

    name: str
    layers: str
    tensors: tuple[Stored, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class Inspection:
    """`obstacle` is why hotloop cannot run the model; "" where it can.

    `text` is None where the model brings no tokenizer, or none that hotloop knows. `per_token` has
    the bytes of weights that a token reads, by format.
    """

    inventory: Inventory
    obstacle: str
    text: TextReport | None
    per_token: Mapping[str, int]

    @property
    def groups(self) -> list[Group]:
        """The tensors in the order of the file, those of all layers together."""
        alike: dict[tuple[str, str, tuple[int, ...]], list[Stored]] = {}
        for tensor in self.inventory.tensors:
            words = ["N" if word.isdecimal() else word for word in tensor.name.split(".")]
            alike.setdefault((".".join(words), tensor.format, tensor.shape), []).append(tensor)
        return [
            Group(name, _layers(tensors), tuple(tensors)) for (name, _, _), tensors in alike.items()
        ]

    def to_json(self) -> dict[str, object]:
        inventory = self.inventory
        return {
            "path": str(inventory.path),
            "kind": inventory.kind,
            "architecture": inventory.architecture,
            "runs": not self.obstacle,
            "obstacle": self.obstacle or None,
            "parameters": inventory.parameters,
            "tensor_bytes": inventory.nbytes,
            "bytes_per_token": dict(self.per_token),
            "tokenizer": None if self.text is None else asdict(self.text),
            "metadata": {key: _printable(value) for key, value in inventory.metadata.items()},
            "tensors": [asdict(tensor) for tensor in inventory.tensors],
        }

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from hotloop.report.inspection_text import render

        yield from render(self)


def inspect(path: Path) -> Inspection:
    """Look into the model at `path`; raises `ModelFileError` where it cannot be listed."""
    inventory = take_inventory(path)
    obstacle, text = _try(path)
    return Inspection(inventory, obstacle, text, bytes_per_token(inventory))


def _try(path: Path) -> tuple[str, TextReport | None]:
    """What stands in the way of running the model, and its tokenizer."""
    obstacles, text = [], None
    try:
        file = open_model(path)
    except HotloopError as error:
        return str(error), None
    try:
        decoder(file).graph(Step())
    except HotloopError as error:
        obstacles.append(str(error))
    try:
        tokenizer = load_tokenizer(file)
    except HotloopError as error:
        obstacles.append(str(error))
    else:
        if tokenizer is not None:
            bos = tokenizer.bos_id if tokenizer.adds_bos else None
            text = TextReport(
                tokens=tokenizer.vocab_size,
                bos=None if bos is None else tokenizer.token_text(bos),
                stops=tuple(map(tokenizer.token_text, tokenizer.stop_ids)),
                chat_template=tokenizer.chat_template is not None,
            )
    return " ".join(obstacles), text


def bytes_per_token(inventory: Inventory) -> dict[str, int]:
    """The bytes of weights that a decode step reads, by format, as stored in the file."""
    names = {tensor.name for tensor in inventory.tensors}
    tied = not names.intersection(_HEADS)  # then the embedding is the head, too, and read whole
    chosen, there_are = _number(inventory, _CHOSEN), _number(inventory, _THERE_ARE)
    read: dict[str, int] = {}
    for tensor in inventory.tensors:
        nbytes = tensor.nbytes
        if tensor.name in _EMBEDDINGS:
            row = nbytes // max(1, tensor.shape[0])
            nbytes = row + nbytes if tied else row
        elif any(word in tensor.name for word in _EXPERTS) and 0 < chosen < there_are:
            nbytes = nbytes * chosen // there_are
        read[tensor.format] = read.get(tensor.format, 0) + nbytes
    return read


def _number(inventory: Inventory, keys: Sequence[str]) -> int:
    """The first of `keys` in the metadata that is a number; GGUF puts the architecture before."""
    for key in keys:
        value = inventory.metadata.get(f"{inventory.architecture}.{key}")
        value = inventory.metadata.get(key) if value is None else value
        if isinstance(value, int):
            return value
    return 0


def _layers(tensors: Sequence[Stored]) -> str:
    """The first numbers in the names, as ranges."""
    numbers = sorted({number for tensor in tensors for number in _first_number(tensor)})
    return ", ".join(
        str(first) if first == last else f"{first}–{last}" for first, last in _runs(numbers)
    )


def _first_number(tensor: Stored) -> list[int]:
    """The first number in the name, if there is one."""
    return [int(word) for word in tensor.name.split(".") if word.isdecimal()][:1]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    starts = [at for at, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    for first, end in pairwise([0, *starts, len(numbers)]):
        if first < end:
            yield numbers[first], numbers[end - 1]


def _printable(value: object) -> object:
    """A value for JSON: long lists by their length and beginning."""
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        return {"length": len(value), "first": value[:_LONGEST_LIST]}
    return value
