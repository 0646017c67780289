"""Grammars for replies: which tokens may follow so that a reply matches a JSON schema.

Made by ``llguidance``, which the extra ``api`` brings; it is imported by the first reply that needs it. It knows the
base's tokens from ``tokenizer.json``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError
from .penalties import Row

ANY_OBJECT = '{"type": "object"}'
"""What the empty schema stands for."""
SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python's ``json`` writes: where spaces were free, a model might write nothing else."""
MISSING = "A reply with a JSON schema needs the library llguidance, which is not installed."
MEND = "Install it with the extra `api` of marlaas."


class Schemas:
    """Makes grammars for one base. Its method may be called on any thread."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """``folder`` has ``tokenizer.json``; the base has logits of ``vocabulary`` tokens."""
        self._file = folder / "tokenizer.json"
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: Any = None

    def grammar(self, schema: str, stop: Sequence[int]) -> SchemaGrammar:
        """For one reply, which ends with one of ``stop``, if there are any.

        Raises ``ConfigError`` where the library is missing or cannot read the tokenizer, ``ValueError`` for a schema
        that it cannot follow.
        """
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError:
            raise ConfigError(MISSING, MEND) from None
        with self._lock:
            if self._tokens is None:
                try:
                    self._tokens = LLTokenizer(str(self._file), n_vocab=self._vocabulary)
                except Exception as error:  # Rust's errors have no class of their own
                    reason = _first_line(str(error))
                    raise ConfigError(f"No schema can be used with this base: {self._file.name}: {reason}.") from None
        text = ANY_OBJECT if not _read(schema) else schema
        matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_json_schema(text, overrides=SPACING), log_level=0)
        if matcher.is_error():
            raise ValueError(f"The JSON schema cannot be followed: {_first_line(matcher.get_error())}.")
        known = [token for token in stop if token < self._vocabulary]
        return SchemaGrammar(matcher, int(self._tokens.eos_token), known)


class SchemaGrammar:
    """Implements ``batching.wished.Grammar``."""

    def __init__(self, matcher: Any, end: int, stop: Sequence[int]) -> None:
        """``end`` is the token that the library allows at the end; ``stop`` are those of the request."""
        self._matcher = matcher
        self._end = end
        self._stop = np.array(stop, np.int64)
        self._stopped = False

    @property
    def over(self) -> bool:
        """See ``Grammar``: the reply is complete, and no stop token can say so."""
        return bool(self._matcher.is_stopped()) and (self._stopped or not len(self._stop))

    def forbid(self, row: Row) -> None:
        """See ``Grammar``."""
        allowed = np.zeros(len(row), bool)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, count=min(len(row), 8 * len(bits)), bitorder="little")
            allowed[: len(found)] = found
        if len(self._stop):
            allowed[self._end] = False
            allowed[self._stop] = self._matcher.is_accepting() or not allowed.any()
        row[~allowed] = -np.inf

    def take(self, token: int) -> None:
        """See ``Grammar``."""
        if token in self._stop:
            self._stopped = True
        else:
            self._matcher.consume_token(token)


def _read(schema: str) -> Any:
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"The JSON schema is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError("The JSON schema is no JSON object.")
    return found


def _first_line(text: str) -> str:
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), "it gives no reason")
