"""What a client sent, checked: JSON of the expected types, texts from lists of parts, tools, stops and schemas.

Types are msgspec's, so a wrong one is refused with its parameter's name; unknown keys are ignored, because clients send
many that make no difference here. What would make a difference and cannot be done is refused in a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ..answerer import Refusal

T = TypeVar("T")

Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TopK = Annotated[int, Meta(ge=-1, le=1 << 30)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=128)]
MOST_STOPS = 16
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


def decode(body: bytes, kind: type[T]) -> T:
    """The body as ``kind``. Raises ``Refusal`` that names the parameter at fault.

    Half a character (a lone surrogate, ``\\ud83d``) is valid JSON that UTF-8 cannot express: it becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(_whole_characters(body), type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = path.removesuffix("`").replace("[...]", "").lstrip(".")
        what = what.rstrip(".")
        raise wrong(f"{where} is wrong: {what}." if where else f"The body is wrong: {what}.", where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "invalid_json", f"The body is no JSON: {str(error).rstrip('.')}.") from None
    except RecursionError:
        raise Refusal(400, "invalid_json", "The body is nested too deeply.") from None


def _whole_characters(body: bytes) -> bytes:
    if _SURROGATE.search(body) is None:
        return body
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body  # its mistake is named where it is decoded
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def wrong(sentence: str, where: str = "", code: str = "invalid_value") -> Refusal:
    """A refusal of what was sent."""
    return Refusal(400, code, sentence, where)


def unsupported(sentence: str, where: str) -> Refusal:
    """A refusal of what is right elsewhere, and not done here."""
    return Refusal(400, "unsupported", sentence, where)


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """A message's text: that of its parts is joined by line ends. Raises ``Refusal`` for what is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise unsupported(f"This model reads text alone: a part of type {part.type!r} cannot be sent.", where)
        if text is None:
            raise wrong(f"Part {index} of {where} has no text.", where)
        texts.append(text)
    return "\n".join(texts)


def stops(stop: str | list[str] | None, where: str = "stop") -> tuple[str, ...]:
    """Where to stop, without empty ones."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MOST_STOPS:
        raise wrong(f"{where} has {len(found)} entries, and may have {MOST_STOPS}.", where)
    return tuple(one for one in found if one)


def function(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool in the form of chat completions. Raises ``Refusal`` where it has no name or no schema."""
    if not isinstance(name, str) or not name:
        raise wrong(f"{where} is a tool without a name.", where)
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(f"The parameters of {where} must be a JSON schema, an object.", where)
    told: dict[str, Any] = {"name": name}
    if isinstance(description, str) and description:
        told["description"] = description
    told["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": told}


def chosen(name: str, tools: Sequence[dict[str, Any]]) -> str:
    """``tool_choice`` of the wire for a tool by name. Raises ``Refusal`` where no tool has it."""
    if name not in {tool["function"]["name"] for tool in tools}:
        raise wrong(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice")
    return f"tool:{name}"


def schema_of(form: dict[str, Any] | None, where: str) -> str:
    """A response format as the wire's ``schema``; its schema may lie inside ``json_schema``, as chat completions have
    it."""
    kind = (form or {"type": "text"}).get("type")
    if kind == "text":
        return ""
    if kind == "json_object":
        return "{}"
    if kind != "json_schema" or form is None:
        raise unsupported(f"{where} is of type {kind!r}; text, json_object and json_schema are known.", where)
    inner = form.get("json_schema", form)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise wrong(f"{where} has no schema.", where)
    return msgspec.json.encode(schema).decode()
