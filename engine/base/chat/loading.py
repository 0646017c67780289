"""Reads a base's chat template from its folder, tested before anybody renders with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import BaseModelError
from .template import FILE, ChatTemplate
from .vetting import vet

SETTINGS, TOKENS = "tokenizer_config.json", "special_tokens_map.json"
FURTHER = "additional_chat_templates"
PROCESSOR = "chat_template.json"
"""A file of older processors, which transformers' tokenizers do not read."""


def load_template(folder: Path) -> ChatTemplate:
    """Read ``chat_template.jinja`` and ``additional_chat_templates``, else ``tokenizer_config.json``.

    As transformers does, of several templates ``default`` is taken, and ``tool_use`` where there are tools. Raises
    ``BaseModelError``.
    """
    settings = read_settings(folder)
    if "added_tokens_decoder" not in settings:
        settings |= read_settings(folder, TOKENS)
    file = folder / FILE
    source = _text(file) if file.exists() else settings.get("chat_template")
    name = FILE if file.exists() else f"chat_template in {SETTINGS}"
    named: dict[str, Any] = {}
    if isinstance(source, list):
        named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
    elif isinstance(source, dict):
        named = source
    further = {path.stem: path for path in (folder / FURTHER).glob("*.jinja")}
    if further:  # files take the place of what tokenizer_config.json has, but for a default that they lack
        named = {"default": named.get("default", source)} | {stem: _text(path) for stem, path in further.items()}
    if named:
        source = named.get("default")
    if not isinstance(source, str):
        raise BaseModelError(
            f"the base model has no chat template{' named default' if named else ''}.",
            f"Copy the template in {PROCESSOR} into a file {FILE}."
            if (folder / PROCESSOR).exists()
            else "Add a chat_template.jinja, or use an instruct model.",
            where=str(folder),
        )
    with_tools = named.get("tool_use")
    tokens = {key: token_name(value) for key, value in settings.items() if key.endswith("_token") and value}
    tokens = {key: value for key, value in tokens.items() if value}
    vet([text for text in (source, with_tools) if isinstance(text, str)], tokens, name)
    return ChatTemplate(source, tokens, name, with_tools if isinstance(with_tools, str) else None)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise BaseModelError(f"cannot be read: {error}.", where=str(file)) from error


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
