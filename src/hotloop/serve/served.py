"""Served: a model with its engine, as the endpoints see it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hotloop.frontends.chat_template import render_conversation
from hotloop.frontends.tokenizer import Tokenizer, infill_ids
from hotloop.runtime.engine import Engine
from hotloop.runtime.pooling import Pooling
from hotloop.serve.errors import ApiError, as_api_error
from hotloop.serve.metrics import Metrics
from hotloop.util.errors import UsageError

#: A text of more characters than this for each token of the context is refused unread: turning it
#: into tokens takes time. Ordinary text has three to five, a run of spaces may have more.
CHARACTERS_PER_TOKEN = 32


@dataclass(frozen=True)
class Served:
    """`context` and `vocab` count tokens, `created` is in seconds since 1970.

    `width` is the length of its hidden states, and `pooling` how they become embeddings.
    `weight_bytes` is what a token reads of the weights, `bandwidth` what the memory gives at most,
    in bytes per second: together, the limit of tokens per second for one stream.
    """

    name: str
    engine: Engine
    tokenizer: Tokenizer
    context: int
    vocab: int
    created: int
    metrics: Metrics
    width: int = 0
    pooling: Pooling = "last"
    weight_bytes: int = 0
    bandwidth: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.tokenizer.stop_ids

    def check_name(self, name: str | None) -> None:
        """Raise where a request asks for another model."""
        if name is not None and name != self.name:
            text = f"there is no model {name!r:.80}; this server has {self.name!r}."
            raise ApiError(text, 404, "model", "model_not_found")

    def encode_prompt(self, text: str, param: str) -> list[int]:
        """The tokens of a prompt that is text: with BOS, where the model's file says so."""
        return self._with_bos(self.encode(text, param))

    def encode_infill(self, prompt: object, suffix: str) -> list[int]:
        """The tokens of a prompt whose continuation comes before `suffix`."""
        marks = infill_ids(self.tokenizer.codec)
        if marks is None:
            raise ApiError(
                f"{self.name} was not made to fill in: it has no tokens for that.", param="suffix"
            )
        if not isinstance(prompt, str):
            raise ApiError("suffix needs a prompt that is one text.", param="suffix")
        before, after, middle = marks
        text = self.encode(prompt, "prompt", special=False)
        end = self.encode(suffix, "suffix", special=False)
        tokens = self._with_bos([before, *text, after, *end, middle])
        self.check_prompt(tokens, "prompt")
        return tokens

    def encode_text(self, text: str, param: str) -> list[int]:
        """The tokens of a text that is embedded: with EOS, too, where the model's file says so."""
        tokens, eos = self.encode_prompt(text, param), self.tokenizer.eos_id
        return [*tokens, eos] if self.tokenizer.adds_eos and eos is not None else tokens

    def encode(self, text: str, param: str, special: bool = True) -> list[int]:
        if len(text) > self.context * CHARACTERS_PER_TOKEN:
            raise ApiError(
                f"{param} has {len(text)} characters, too many for a context of {self.context} "
                "tokens; shorten it.",
                param=param,
                code="context_length_exceeded",
            )
        try:
            return self.tokenizer.encode(text, special)
        except UsageError as error:  # text that is not Unicode
            raise as_api_error(error, param) from None

    def check_tokens(self, tokens: Sequence[int], param: str) -> None:
        """Raise where one of `tokens` is none of the model's."""
        wrong = next((token for token in tokens if token >= self.vocab), None)
        if wrong is not None:
            text = f"there is no token {wrong}; the model has 0 to {self.vocab - 1}."
            raise ApiError(text, param=param)

    def check_prompt(self, tokens: Sequence[int], param: str) -> None:
        """Raise where `tokens` cannot be a prompt that a token follows."""
        if not tokens:
            raise ApiError(f"{param} has no tokens; give at least one.", param=param)
        if len(tokens) > self.context:
            raise ApiError(
                f"{param} has {len(tokens)} tokens and the context holds {self.context}; "
                "shorten it.",
                param=param,
                code="context_length_exceeded",
            )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
        names: Mapping[str, Any],
    ) -> list[int]:
        """The tokens of a conversation, as the model's template writes it."""
        if not self.takes_chat:
            raise ApiError(
                f"{self.name} has no chat template; use /v1/completions.", 400, "messages"
            )
        text = render_conversation(self.tokenizer, messages, tools, **names)
        tokens = self.encode(text, "messages")
        return tokens if tokens[:1] == [self.tokenizer.bos_id] else self._with_bos(tokens)

    def status(self) -> dict[str, Any]:
        """What the web page shows: the model, the limit that its memory sets, the engine's load."""
        limit = self.bandwidth / self.weight_bytes if self.weight_bytes else 0.0
        return {
            "model": self.name,
            "context": self.context,
            "facts": dict(self.facts),
            "takes_chat": self.takes_chat,
            "memory_tokens_per_second": round(limit, 1),
            "load": asdict(self.engine.load()),
        }

    @property
    def takes_chat(self) -> bool:
        return self.tokenizer.chat_template is not None

    @property
    def takes_tools(self) -> bool:
        """Whether the model's template has a place for tools."""
        templates = (self.tokenizer.chat_template, self.tokenizer.tool_template)
        return any("tools" in template for template in templates if template is not None)

    def _with_bos(self, tokens: list[int]) -> list[int]:
        bos = self.tokenizer.bos_id
        return [bos, *tokens] if self.tokenizer.adds_bos and bos is not None else tokens
