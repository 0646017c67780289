"""A home's environments without an engine, and their first prompts; for a verb, or a thread of the application.

Everything is played in a temporary folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from marlaas.engine.environments import EnvironmentInfo, Interpreters, Peek, first_prompts, found_alone
from marlaas.engine.home import BUNDLED_PLUGINS, Home, load_settings
from marlaas.engine.store import EnvironmentRow
from marlaas.plugins.messages import Ask

from ...words.environments import transcript as transcript
from ...words.format import excerpt

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


def environments_alone(home: Home, names: Sequence[str]) -> list[EnvironmentRow]:
    """The environments that names may mean, as an engine would tell of them if one ran; blocks for a second.

    Installs nothing: a plugin whose libraries are not there has no version.
    """
    settings = replace(load_settings(home).environments, allow="never")
    interpreters = Interpreters(home.venvs, settings)
    with TemporaryDirectory(prefix="marlaas-peek-", ignore_cleanup_errors=True) as scratch:
        folders = (BUNDLED_PLUGINS, home.plugins)
        infos = asyncio.run(found_alone(names, folders, Path(scratch), interpreters))
    return [_row(info) for info in infos]


def _row(info: EnvironmentInfo) -> EnvironmentRow:
    failure = info.failure
    return EnvironmentRow(
        name=info.name,
        version=info.version,
        state=info.state,
        parameters=tuple(asdict(parameter) for parameter in info.parameters),
        description=info.description,
        message=failure.message if failure else "",
        file=failure.file if failure else "",
        line=failure.line if failure else 0,
        path=info.path,
        updated=time.time(),
        agents=info.agents,
        rows=info.rows,
    )


def prompt_lines(ask: Ask) -> list[str]:
    """What the model is asked, as safe lines: its tools, then each message under its role, cut where it is long."""
    rows = transcript.tools(ask.tools)
    for said in ask.messages:
        rows += transcript.message(replace(said, content=excerpt(said.content, CHARACTERS, LINES)))
    return rows
