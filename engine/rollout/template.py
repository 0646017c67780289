"""The base model's chat template: messages as plain dictionaries come in, text goes out.

Templates come with models from anywhere, so they run in jinja2's immutable sandbox, with the helpers that Hugging Face
gives them (``tojson``, ``raise_exception``, ``strftime_now``). Knows no tokens.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import BaseModelError

TODAY = datetime.datetime(2025, 1, 1)
"""What templates that ask for the date are told: prompts must not change from one day to the next."""


class ChatTemplate:
    """One model's template, compiled."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        """``tokens`` are the names of special tokens that templates use, such as ``bos_token``.

        Raises ``BaseModelError`` if the template does not compile.
        """
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": TODAY.strftime, **tokens}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BaseModelError(f"The base model's chat template does not compile: {error}.") from error

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """The conversation up to and with the generation prompt.

        Raises ``BaseModelError`` where the template refuses, for example two user turns in a row.
        """
        try:
            return self._template.render(messages=messages, tools=tools or None, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise BaseModelError(f"The base model's chat template refuses this conversation: {error}.") from error


def load_template(folder: Path) -> ChatTemplate:
    """Read ``chat_template.jinja``, or ``chat_template`` in ``tokenizer_config.json``."""
    settings = read_settings(folder)
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        raise BaseModelError(
            f"The base model {folder} has no chat template.", "Add a chat_template.jinja, or use an instruct model."
        )
    names = {name: _text(settings[name]) for name in settings if name.endswith("_token") and settings[name]}
    return ChatTemplate(source, names)


def read_settings(folder: Path, name: str = "tokenizer_config.json") -> dict[str, Any]:
    """A JSON file of the base's folder; empty if there is none."""
    try:
        settings = json.loads((folder / name).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BaseModelError(f"{folder / name} cannot be read: {error}.") from error
    return settings if isinstance(settings, dict) else {}


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token.get("content", ""))


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Like Hugging Face's: not escaped for HTML, unlike jinja2's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
