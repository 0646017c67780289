"""Reads a base's chat template from its folder, tested before anybody renders with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import BaseModelError
from .template import FILE, ChatTemplate
from .vetting import vet

SETTINGS = "tokenizer_config.json"


def load_template(folder: Path) -> ChatTemplate:
    """Read ``chat_template.jinja``, or ``chat_template`` in ``tokenizer_config.json``.

    Of several templates ``default`` is taken, and ``tool_use`` where there are tools. Raises ``BaseModelError``.
    """
    settings = read_settings(folder)
    file = folder / FILE
    try:
        source = file.read_text("utf-8") if file.exists() else settings.get("chat_template")
    except (OSError, ValueError) as error:
        raise BaseModelError(f"cannot be read: {error}.", where=str(file)) from error
    name = FILE if file.exists() else f"chat_template in {SETTINGS}"
    named: dict[str, Any] = {}
    if isinstance(source, list):
        named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        raise BaseModelError(
            f"the base model has no chat template{' named default' if named else ''}.",
            "Add a chat_template.jinja, or use an instruct model.",
            where=str(folder),
        )
    with_tools = named.get("tool_use")
    tokens = {key: token_name(value) for key, value in settings.items() if key.endswith("_token") and value}
    tokens = {key: value for key, value in tokens.items() if value}
    vet([text for text in (source, with_tools) if isinstance(text, str)], tokens, name)
    return ChatTemplate(source, tokens, name, with_tools if isinstance(with_tools, str) else None)


def read_settings(folder: Path, name: str = SETTINGS) -> dict[str, Any]:
    """Read a JSON file of the base's folder; empty if there is none."""
    try:
        settings = json.loads((folder / name).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BaseModelError(f"cannot be read: {error}.", where=str(folder / name)) from error
    return settings if isinstance(settings, dict) else {}


def token_name(token: Any) -> str:
    """The text of a special token, which settings have as a text or a table; empty for anything else."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
