"""The first prompts of a home's environment; asked for by a verb, or by a thread of the application.

Everything is played in a temporary folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from marlaas.engine.environments import Interpreters, Peek, first_prompts
from marlaas.engine.home import BUNDLED_PLUGINS, Home, load_settings
from marlaas.plugins.messages import Ask

from ..words import env_transcript as transcript
from ..words.format import excerpt

PROMPTS = 3
CHARACTERS, LINES = 600, 8
"""Of a message that are shown."""


def peeked(
    home: Home,
    environment: str,
    config: Mapping[str, Any],
    count: int = PROMPTS,
    data: Mapping[str, Any] | None = None,
) -> Peek:
    """The first prompts of an environment, with ``data`` in place of its own rows; blocks for a second.

    Raises ``ConfigError`` and its kin.
    """
    interpreters = Interpreters(home.venvs, load_settings(home).environments)
    with TemporaryDirectory(prefix="marlaas-peek-", ignore_cleanup_errors=True) as scratch:
        folders = (BUNDLED_PLUGINS, home.plugins)
        return asyncio.run(first_prompts(environment, config, count, folders, Path(scratch), interpreters, data))


def prompt_lines(ask: Ask) -> list[str]:
    """What the model is asked, as safe lines: its tools, then each message under its role, cut where it is long."""
    rows = transcript.tools(ask.tools)
    for said in ask.messages:
        rows += transcript.message(replace(said, content=excerpt(said.content, CHARACTERS, LINES)))
    return rows
