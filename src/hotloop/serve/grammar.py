"""Grammars: JSON schemas and Lark grammars as masks over the vocabulary, by llguidance.

Its lexer works with derivatives of regular expressions, so no pattern makes it backtrack, and it
counts what it does: a schema that is too much is an error, not a wait.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from hotloop.frontends.tokenizer import Tokenizer
from hotloop.runtime.sequence import ConstraintError
from hotloop.serve.errors import ApiError

#: Characters of a schema or grammar.
LENGTH_LIMIT = 1 << 16
#: At most so much space in a row: a model that is lost would else fill its context with it.
_SPACE = r"[ \n]{0,20}"


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        codec = tokenizer.codec
        special = [id for id in range(codec.size) if codec.is_special(id)]
        end = tokenizer.eos_id if tokenizer.eos_id is not None else next(iter(tokenizer.stop_ids))
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = special
        self.tokens = [codec.piece(id) for id in range(codec.size)]
        self.tokens += [b""] * (vocab - len(self.tokens))
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, special=False)


class Grammars:
    """Makes grammars for one vocabulary of `vocab` tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """Made when first needed: it takes a moment."""
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab))
        stop_ids = list(self._tokenizer.stop_ids)
        return LLTokenizer(wrapper, n_vocab=self._vocab, eos_token=stop_ids or None)

    def schema(self, schema: dict[str, Any], param: str) -> "Rules":
        """Grammars for JSON that `schema` allows. Raises `ApiError` where it is not possible."""
        try:
            text = json.dumps(schema)
            _check_length(text, param)
            grammar = LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_pattern": _SPACE}
            )
        except (ValueError, RecursionError) as error:
            raise ApiError(f"{param}: {error}.", param=param) from None
        return self._maker(grammar, param)

    def lark(self, text: str, param: str) -> "Rules":
        """Grammars for what a Lark grammar describes."""
        _check_length(text, param)
        return self._maker(LLMatcher.grammar_from_lark(text), param)

    def _maker(self, grammar: str, param: str) -> "Rules":
        first = LLMatcher(self._vocabulary, grammar, log_level=0, limits=LLParserLimits())
        if first.is_error():
            reason = first.get_error().strip().splitlines()[0]
            raise ApiError(f"{param}: {reason:.300}", param=param)
        return Rules(param, first, self._vocab)


def _check_length(text: str, param: str) -> None:
    if len(text) > LENGTH_LIMIT:
        raise ApiError(f"{param} is longer than {LENGTH_LIMIT} characters.", param=param)


@dataclass(frozen=True)
class Rules:
    """What outputs have to follow: called, it makes a grammar for one of them.

    `param` is the field of the request that said it.
    """

    param: str
    _matcher: LLMatcher
    _vocab: int

    def __call__(self) -> "Grammar":
        return Grammar(self._matcher.deep_copy(), self._vocab)


class Grammar:
    """One grammar on its way through one output (`hotloop.runtime.sequence.Constraint`)."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab

    def allowed(self) -> NDArray[np.bool_]:
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(mask, bitorder="little")[: self._vocab].astype(bool)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().splitlines()[0]
            raise ConstraintError(f"the grammar cannot go on: {reason:.300}")
