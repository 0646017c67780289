"""The base model's chat template, which makes one text of messages (plain dictionaries).

Templates come with models from anywhere, so they run in a bounded sandbox (``sandbox.py``), with the helpers that
Hugging Face gives them (``tojson``, ``raise_exception``, ``strftime_now``). The template alone decides whether the
conversation begins with the model's first token (bos): nothing is added to what it writes. Knows no tokens.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, NoReturn

import jinja2

from ...errors import BaseModelError
from .sandbox import STEPS, BoundedEnvironment

STEPS_EACH = 2000
"""Further steps that a rendering may take for each message and tool."""
STEPS_CHARACTER = 4
"""Further steps for each character of the messages, with which a template can read each about a hundred times."""
TODAY = datetime.datetime(2025, 1, 1)
"""The date that templates are given: prompts must not change from one day to the next."""
FILE = "chat_template.jinja"
_LONGEST_REASON = 500
SWITCH = "enable_thinking"
"""The template's variable for whether the model is to think."""


class ChatTemplate:
    """One model's template, compiled."""

    def __init__(self, source: str, tokens: dict[str, str], name: str = FILE, with_tools: str | None = None) -> None:
        """``tokens`` are the names of special tokens that templates use, such as ``bos_token``.

        ``name`` is the source's file in errors; ``with_tools`` is the source to use where there are tools. Raises
        ``BaseModelError`` if one does not compile.
        """
        self.source = source if with_tools is None else source + with_tools
        """All sources together, to search for words."""
        self._environment = BoundedEnvironment()
        self._environment.add_filter("tojson", _tojson)
        self._environment.globals |= {"raise_exception": _raise, "strftime_now": TODAY.strftime, **tokens}
        self._template = self._compile(source, name)
        self._with_tools = self._template if with_tools is None else self._compile(with_tools, name)

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool | None = None
    ) -> str:
        """The conversation up to and with the generation prompt; ``thinking`` None is the template's own default.

        Raises ``BaseModelError`` if the template refuses, for example two user turns in a row.
        """
        values: dict[str, Any] = {"messages": messages, "tools": tools or None, "add_generation_prompt": True}
        values["documents"] = None
        if thinking is not None:
            values[SWITCH] = thinking
        size = sum(len(message["content"]) for message in messages)
        steps = STEPS + STEPS_EACH * (len(messages) + len(tools or ())) + STEPS_CHARACTER * size
        try:
            return self._environment.render(self._with_tools if tools else self._template, values, steps)
        except RecursionError as error:
            raise BaseModelError("The base model's chat template calls itself without end.") from error
        except MemoryError as error:
            raise BaseModelError("The base model's chat template builds more than fits into memory.") from error
        except Exception as error:  # what a template calls may raise anything
            reason = _reason(error)
            raise BaseModelError(
                f"The base model's chat template refuses this conversation: {reason}.",
                "Its rules are in the base's folder: an environment must keep to them, or they have a mistake.",
            ) from error

    def _compile(self, source: str, name: str) -> jinja2.Template:
        try:
            return self._environment.load(source)
        except jinja2.TemplateSyntaxError as error:
            reason = _reason(error)
            raise BaseModelError(
                f"The base model's chat template does not compile: {name}, line {error.lineno}: {reason}.",
                "Mend the template, or take the model's files again from where they came.",
            ) from error
        except Exception as error:  # Python's compiler has limits of its own: nested loops, memory
            raise BaseModelError(
                f"The base model's chat template does not compile: {name}: {_reason(error)}."
            ) from error


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Like Hugging Face's: not escaped for HTML, unlike jinja2's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _reason(error: Exception) -> str:
    """An error's message as one line of limited length."""
    said = str(error.message if isinstance(error, jinja2.TemplateSyntaxError) else error)
    reason = " ".join(said[:_LONGEST_REASON].split()).rstrip(".") or type(error).__name__
    return reason if len(said) <= _LONGEST_REASON else f"{reason}…"


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
