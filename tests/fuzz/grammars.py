"""The border at which clients say what form answers must have: JSON schemas.

A schema is refused in one sentence, or every answer that ends under its grammar is JSON that meets it. Numbers are read
as decimals, so that what is compared is what was written.
"""

from __future__ import annotations

import json
import zlib
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.schemas import SchemaGrammar, Schemas
from marlaas.engine.samplers.vocabulary import Vocabulary

from .borders import Border

LONGEST_SENTENCE = 400
END = 1
"""The shipped base's token at the end of a turn."""
TOKENS = 100
"""Of an answer, at most."""
ENDING = 4.0
"""How much likelier what closes a text, a list or an object is than all else: else few answers would end."""
_SEEDS = 3
_CAR = {
    "type": "object",
    "properties": {"make": {"type": "string", "maxLength": 8}, "year": {"type": "integer", "minimum": 1886}},
    "required": ["make", "year"],
    "additionalProperties": False,
}
_TREE = {
    "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    "$ref": "#/$defs/node",
}
_MIXED = {
    "anyOf": [
        {"enum": ["gr\u00fcn", None, 1.5, [1], {"a": True}]},
        {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
        {"type": "string", "pattern": "^[a-c]{2,3}(x|y)?$"},
        {"type": "integer", "multipleOf": 7},
    ]
}
_ROW = {"prefixItems": [{"type": "boolean"}, {"const": "a"}], "items": {"type": "null"}, "type": "array", "minItems": 3}
_MAP = {
    "type": "object",
    "patternProperties": {"^a": {"type": "integer"}},
    "additionalProperties": {"type": "boolean"},
    "maxProperties": 2,
}
_TIMES = {"allOf": [{"type": ["string", "null"]}, {"maxLength": 20}], "format": "date-time"}
SAMPLES = [json.dumps(one).encode() for one in (_CAR, _TREE, _MIXED, _ROW, _MAP, _TIMES, {"type": "object"}, {})]
_WORDS = [
    *(b'"type":', b'"properties":', b'"items":', b'"anyOf":', b'"allOf":', b'"oneOf":', b'"not":', b'"const":'),
    *(b'"enum":', b'"$ref":"#"', b'"$ref":"#/$defs/node"', b'"pattern":', b'"minimum":', b'"multipleOf":0.01'),
    *(b'"maxLength":', b'"minItems":', b'"required":', b'"format":"email"', b'"uniqueItems":true', b'"minLength":9'),
    *(b'"additionalProperties":', b'"x-guidance":{"lenient":true}', b'"$schema":', b'"$id":', b"true", b"false"),
    *(b"null", b"{}", b"[]", b"1e300", b"-0.0", b"999983", b"[", b"]", b"{", b"}", b",", b":", b'"', b"^(a|b)+$"),
    *(b'"integer"', b'"string"', b'"array"', b'"object"', b'"a"', b"\\ud800", b"\\u0000", b".*", b"{1000}", b"\\\\d"),
]


class SchemaBorder(Border):
    """Its inputs are also schemas that are made from all keywords, and not from samples."""

    def inputs(self) -> st.SearchStrategy[bytes]:
        """See ``Border``."""
        changed, whole = super().inputs(), made().map(lambda schema: json.dumps(schema).encode())
        return st.booleans().flatmap(lambda keywords: whole if keywords else changed)


def made() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of all kinds, most of which can be followed."""
    return st.recursive(_leaves(), _branches, max_leaves=8)


def _leaves() -> st.SearchStrategy[dict[str, Any]]:
    small = st.integers(-30, 30)
    halves = small.map(lambda number: number / 4)
    values = st.none() | st.booleans() | small | halves | st.text(max_size=4) | st.lists(small, max_size=2)
    patterns = st.sampled_from(("^a+$", "b", "^[^x]{2}$", "^(ab|c)*$", "\\d", "^\u00e4.$", "^$", "a|", "^\\w{1,3}$"))
    integer = _some(
        {"type": st.just("integer")},
        minimum=small,
        maximum=small,
        multipleOf=st.integers(1, 40),
        exclusiveMinimum=small,
    )
    number = _some({"type": st.just("number")}, minimum=halves, exclusiveMaximum=halves, multipleOf=st.just(0.25))
    text = _some(
        {"type": st.just("string")}, minLength=st.integers(0, 4), maxLength=st.integers(0, 9), pattern=patterns
    )
    types = st.lists(st.sampled_from(("null", "boolean", "integer", "string", "object")), min_size=1, unique=True)
    return (
        integer
        | number
        | text
        | st.fixed_dictionaries({"type": types})
        | st.fixed_dictionaries({"const": values})
        | st.fixed_dictionaries({"enum": st.lists(values, max_size=4)})
        | st.sampled_from(({}, {"$ref": "#"}, {"format": "ipv4", "type": "string"}, {"not": {}}))
    )


def _branches(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(("a", "b", "\u00e9", 'q"', ""))
    few = st.integers(0, 3)
    fields = st.dictionaries(names, inner, max_size=3)
    branches = st.lists(inner, min_size=1, max_size=3)
    return (
        _some(
            {"type": st.just("object"), "properties": fields},
            required=st.lists(names, unique=True, max_size=3),
            additionalProperties=st.booleans() | inner,
            patternProperties=st.dictionaries(st.sampled_from(("^a", "^x", "b$")), inner, max_size=2),
            minProperties=few,
            maxProperties=few,
        )
        | _some(
            {"type": st.just("array")},
            items=st.booleans() | inner,
            prefixItems=branches,
            minItems=few,
            maxItems=few,
        )
        | _some({"anyOf": branches}, type=st.sampled_from(("object", "integer", "string")))
        | _some({"allOf": branches}, properties=fields)
        | st.fixed_dictionaries({"oneOf": branches})
    )


def _some(
    always: dict[str, st.SearchStrategy[Any]], **sometimes: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(always, optional=sometimes)


@lru_cache(1)
def _tools() -> tuple[Schemas, Vocabulary, int]:
    base = load_base("tiny")
    return Schemas(base.path, base.config.vocab_size), Vocabulary(base.path / "tokenizer.json"), base.config.vocab_size


def grammar(schema: str) -> SchemaGrammar | None:
    """Of a schema; None for one that is refused as it should be."""
    try:
        return _tools()[0].grammar(schema, (END,))
    except ValueError as error:
        sentence(str(error))
        return None


def answer(held: SchemaGrammar, seed: int, tokens: int = TOKENS) -> str | None:
    """What a model without sense would say under a grammar; None where it did not come to an end, or to a dead end."""
    _, vocabulary, size = _tools()
    rng = np.random.default_rng(seed)
    liking = np.zeros(size, np.float32)
    liking[[END, *(vocabulary.encode(one)[0] for one in '"]}')]] = ENDING
    said: list[int] = []
    while len(said) < tokens:
        row = (rng.gumbel(size=size) + liking).astype(np.float32)
        held.forbid(row)
        said.append(int(row.argmax()))
        assert held.problem or row[said[-1]] > -np.inf, "something may always follow"
        held.take(said[-1])
        if held.problem:
            sentence(held.problem)
            return None
        if said[-1] == END:
            return vocabulary.decode(said[:-1])
    return None


def schemas(data: bytes) -> None:
    """Refused in a sentence, or followed by whatever is said under it."""
    schema = data.decode("utf-8", "replace")
    for number in range(_SEEDS):
        held = grammar(schema)
        if held is None:
            return
        said = answer(held, zlib.crc32(data) + number)
        if said is not None:
            meets(said, schema)


def meets(said: str, schema: str) -> None:
    """It is JSON, and what the schema wants, where that is a schema at all."""
    json.loads(said)
    kind = validators.validator_for(json.loads(schema), default=validators.Draft202012Validator)
    try:
        kind.check_schema(json.loads(schema))
        wanted, value = (json.loads(text, parse_float=Decimal) for text in (schema, said))
        _exact(kind)(wanted or {"type": "object"}, registry=Registry()).validate(value)
    except (SchemaError, Unresolvable):
        return
    except (InvalidOperation, RecursionError):  # of numbers with a million digits, and of a schema that is itself
        return
    except ValidationError as error:
        raise AssertionError(f"{said!r} does not meet {schema!r}: {error.message}") from error


def _exact(kind: type[Validator]) -> Any:
    """The same validator, for numbers that are decimals where they are not written as whole ones."""
    types = kind.TYPE_CHECKER.redefine_many({"number": _is_number, "integer": _is_whole})
    return validators.extend(kind, type_checker=types)


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_whole(_: object, value: object) -> bool:
    return _is_number(_, value) and (not isinstance(value, Decimal) or value == value.to_integral_value())


def sentence(text: str) -> None:
    """One that a person can read to its end."""
    assert text.endswith(".") and len(text) <= LONGEST_SENTENCE and text.isprintable(), text
    text.encode()


SCHEMAS = (SchemaBorder("schemas", SAMPLES, _WORDS, schemas),)
