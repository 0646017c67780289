"""Reading the bodies of requests. Unknown keys are ignored; unsupported keys with an effect are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ...wire import Refusal, Wishes

T = TypeVar("T")

Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TopK = Annotated[int, Meta(ge=-1, le=1 << 30)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=64)]
MOST_STOPS, LONGEST_STOP = 16, 500
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "n")
"""Options named alike in bodies and ``Wishes``."""
TEXTS = ("text", "input_text", "output_text", "refusal")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    tool_name: str | None = None
    """Of a reference to a tool."""


def decode(body: bytes, kind: type[T]) -> T:
    r"""Raises ``Refusal`` with the wrong parameter.

    A lone surrogate (``\ud83d``), valid JSON but not UTF-8, becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(_whole_characters(body), type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = path.removesuffix("`").replace("[...]", "").lstrip(".")
        raise wrong(f"{where or 'The body'} is wrong: {what.rstrip('.')}.", where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong(f"The body is no JSON: {str(error).rstrip('.')}.", code="invalid_json") from None
    except RecursionError:
        raise wrong("The body is nested too deeply.", code="invalid_json") from None


def _whole_characters(body: bytes) -> bytes:
    if _SURROGATE.search(body) is None:
        return body
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body  # decoding will name its mistake
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def wrong(sentence: str, where: str = "", code: str = "invalid_value") -> Refusal:
    """For wrong input."""
    return Refusal(400, code, sentence, where)


def unsupported(sentence: str, where: str) -> Refusal:
    """For valid, unsupported input."""
    return wrong(sentence, where, "unsupported")


def check(*rules: tuple[object, Refusal]) -> None:
    """Raise the first refusal that holds."""
    for holds, refusal in rules:
        if holds:
            raise refusal


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """Joined by line ends. Raises ``Refusal`` for content without text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.refusal if part.type == "refusal" else part.text for part in content]
    strange = next((part.type for part in content if part.type not in TEXTS), None)
    check(
        (strange, unsupported(f"This model reads text alone: a part of type {strange!r} cannot be sent.", where)),
        (None in texts, wrong(f"A part of {where} has no text.", where)),
    )
    return "\n".join(text or "" for text in texts)


def wishes_of(sent: Any, stop: str | list[str] | None = None, where: str = "stop", **others: Any) -> Wishes:
    """``others`` are named as in ``Wishes``. Raises ``Refusal`` for too many stops."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise wrong(f"{where} may name {MOST_STOPS} texts of up to {LONGEST_STOP} characters.", where)
    options = {name: getattr(sent, name, None) for name in SAMPLING} | others
    given = {name: value for name, value in options.items() if value is not None}
    return Wishes(stop=tuple(filter(None, stops)), **given)


def schema_of(form: Any, where: str) -> str:
    """The wire's; chat completions put it inside ``json_schema``."""
    form = form or {"type": "text"}
    kind, inner = (form.get("type"), form.get("json_schema", form)) if isinstance(form, dict) else (None, None)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    known = ("text", "json_object", "json_schema")
    check(
        (kind not in known, unsupported(f"{where} is of type {kind!r}; {', '.join(known)} are known.", where)),
        (kind == "json_schema" and not isinstance(schema, dict), wrong(f"{where} has no schema.", where)),
    )
    if kind == "json_schema":
        return msgspec.json.encode(schema).decode()
    return "" if kind == "text" else "{}"
