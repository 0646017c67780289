"""The first prompts of an environment, for a person who is about to train on it. No model and no engine is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask

from ..errors import EnvironmentFailure
from .alone import serve_alone
from .dependencies.interpreters import Interpreters
from .probe import PATIENCE
from .protocol import EnvironmentInfo, EpisodeSpec


@dataclass(frozen=True)
class Peek:
    """The first prompts of an environment."""

    info: EnvironmentInfo
    asks: tuple[Ask, ...] = ()
    """The first ask of each of the first training instances."""
    problem: str = ""
    """Why there are no more, in one sentence."""


async def first_prompts(
    name: str,
    config: Mapping[str, Any],
    count: int,
    folders: Sequence[Path],
    scratch: Path,
    interpreters: Interpreters | None = None,
    data: Mapping[str, Any] | None = None,
) -> Peek:
    """Draw ``count`` instances in processes that end afterwards; ``data`` as for ``EnvironmentService.bind``, other
    arguments as for ``serve_alone``.

    With a count of 0 the environment is described whatever its parameters are. Raises ``EnvironmentMissing`` and, where
    the parameters do not fit, ``ConfigError``.
    """
    async with serve_alone(name, folders, scratch, interpreters) as (service, info):
        asks: list[Ask] = []
        if not count:
            return Peek(info)
        try:
            with await service.bind(info.name, config=config, data=data) as lease:
                for index in range(count):
                    spec = EpisodeSpec("train", index, seed=0, member=0, config=lease.config, timeout=PATIENCE)
                    asks.append(await service.peek(lease, spec))
        except EnvironmentFailure as failure:
            return Peek(info, tuple(asks), str(failure))
        return Peek(info, tuple(asks))
