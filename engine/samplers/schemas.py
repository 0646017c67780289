"""Grammars for a JSON schema, by ``llguidance`` (extra ``api``)."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError
from .sampling import Row
from .vocabulary import PRIVATE

ANY_OBJECT = '{"type": "object"}'
SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python's ``json``: a model might write only free spaces."""
MISSING = "A reply with a JSON schema needs the library llguidance, which is not installed."
MEND = "Install it with the extra `api` of marlaas."
MOST_MULTIPLE = 10_000
"""A grammar of multiples counts remainders: 10 s at a million."""
LONGEST_REASON = 240
DEAD_END = "NoExtensionBias"
"""The library's name of a state without continuation or end."""
NESTED = "The JSON schema is nested too deeply."
OWN_OPTIONS = "x-guidance"
"""With this key a schema could disable checks and produce invalid JSON."""


class Schemas:
    """Makes grammars for one base. Thread-safe."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self._file = folder / "tokenizer.json"
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: Any = None

    def grammar(self, schema: str, stop: Sequence[int]) -> SchemaGrammar:
        """The reply ends with one of ``stop``, if any.

        Raises ``ConfigError`` if the library is missing or cannot read the tokenizer, ``ValueError`` for an unsupported
        schema.
        """
        try:
            from llguidance import LLMatcher, LLParserLimits, LLTokenizer
        except ImportError:
            raise ConfigError(MISSING, MEND) from None
        with self._lock:
            if self._tokens is None:
                try:
                    self._tokens = self._read_tokens(LLTokenizer)
                except Exception as error:  # Rust's errors have no class
                    reason = _told(str(error))
                    raise ConfigError(f"No schema can be used with this base: {self._file.name}: {reason}.") from None
        wanted = _read(schema)
        text = json.dumps(wanted) if wanted else ANY_OBJECT
        try:
            made = LLMatcher.grammar_from_json_schema(text, overrides=SPACING)
        except ValueError as error:
            raise ValueError(_unfollowed(str(error))) from None
        matcher = LLMatcher(self._tokens, made, log_level=0, limits=LLParserLimits(verbose_errors=False))
        matcher.compute_bitmask()  # the first one takes longest, and detects impossible schemas
        if matcher.is_error():
            raise ValueError(_unfollowed(matcher.get_error()))
        known = [token for token in stop if token < self._vocabulary]
        return SchemaGrammar(matcher, int(self._tokens.eos_token), known)

    def _read_tokens(self, read: Callable[..., Any]) -> Any:
        content = json.loads(self._file.read_text("utf-8"))
        added = content.get("added_tokens") or []
        numbers = {token["content"]: token["id"] for token in added if token["content"].strip()}
        if not numbers:
            return read(str(self._file), n_vocab=self._vocabulary)
        for token in added:
            if token["content"] in numbers:
                token.update(content=_hidden(token["id"]), special=True)
        words = content["model"]["vocab"]
        content["model"]["vocab"] = (
            {_hidden(number) if word in numbers else word: number for word, number in words.items()}
            if isinstance(words, dict)
            else [[_hidden(numbers[word]) if word in numbers else word, score] for word, score in words]
        )
        content["post_processor"] = None  # it names added tokens
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            return read(file.name, n_vocab=self._vocabulary, eos_token=min(numbers.values()))


def _hidden(number: int) -> str:
    return f"{chr(PRIVATE)}{number}{chr(PRIVATE)}"


class SchemaGrammar:
    """What a turn may say next, for ``batching.turn.Wished``."""

    def __init__(self, matcher: Any, end: int, stop: Sequence[int]) -> None:
        self._matcher = matcher
        self._end = end
        self._stop = np.array(stop, np.int64)
        self._stopped = False

    @property
    def over(self) -> bool:
        if self._matcher.is_error():
            return True
        return bool(self._matcher.is_stopped()) and (self._stopped or not len(self._stop))

    @property
    def problem(self) -> str:
        return _unfollowed(self._matcher.get_error()) if self._matcher.is_error() else ""

    def forbid(self, row: Row) -> None:
        allowed = np.zeros(len(row), bool)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, count=min(len(row), 8 * len(bits)), bitorder="little")
            allowed[: len(found)] = found
        if self._matcher.is_error():  # the turn fails anyway
            return
        if len(self._stop):
            allowed[self._end] = False
            allowed[self._stop] = self._matcher.is_accepting() or not allowed.any()
        row[~allowed] = -np.inf

    def take(self, token: int) -> None:
        if token in self._stop:
            self._stopped = True
        else:
            self._matcher.consume_token(token)


def _read(schema: str) -> dict[str, Any]:
    try:
        found = json.loads(schema)
    except RecursionError:
        raise ValueError(NESTED) from None
    except ValueError as error:
        raise ValueError(f"The JSON schema is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError("The JSON schema is no JSON object.")
    found.pop(OWN_OPTIONS, None)
    try:
        _check_multiples(found)
    except RecursionError:  # from Python 3.12 on the parser recurses deeper than functions
        raise ValueError(NESTED) from None
    return found


def _check_multiples(part: Any) -> None:
    for item in part.values() if isinstance(part, dict) else part:
        if isinstance(item, dict | list):
            _check_multiples(item)
    number = part.get("multipleOf") if isinstance(part, dict) else None
    if isinstance(number, int | float) and number > MOST_MULTIPLE:
        raise ValueError(f"The JSON schema cannot be followed: multipleOf may be {MOST_MULTIPLE:,} at most.")


def _unfollowed(reason: str) -> str:
    return f"The JSON schema cannot be followed: {_told(reason)}."


def _told(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it gives no reason"]
    if lines[0] == DEAD_END:
        return "no answer meets it"
    told = lines[0] if not lines[0].endswith(":") else f"{lines[0]} {lines[-1].removeprefix('error: ')}"
    told = "".join(one if one.isprintable() else "?" for one in told)
    told = told.partition(". ")[0]  # the rest is about options that nobody can set here
    return (told if len(told) <= LONGEST_REASON else f"{told[:LONGEST_REASON]} …").rstrip(".")
