"""One environment without an engine: its first prompts, or a few episodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask

from ..errors import EnvironmentFailure, EnvironmentMissing
from .dependencies import Interpreters
from .files.source import SUFFIXES, plugin_paths
from .protocol import EnvironmentInfo, EpisodeSpec, Opens
from .served_version import PATIENCE
from .service import EnvironmentService, find

LOOK = 0.1
_PATH_STARTS = (".", "~", "/")


@dataclass(frozen=True)
class Meant:
    """What a name can mean, before any plugin is loaded."""

    folders: tuple[Path, ...]
    plugins: frozenset[str]
    """The named one, else all."""
    plugin: str
    environment: str
    """With the plugin instead of a path; without an environment, only the plugin."""


def meant(name: str, folders: Sequence[Path]) -> Meant:
    """Read a name ("games/guess") or a path ("./games.py", "games.py/guess").

    Plugins' names go first. Raises ``EnvironmentMissing``.
    """
    if _is_path(name):
        return _at(name)
    found: set[str] = set()
    for folder in folders:
        found |= plugin_paths(folder).keys()
    plugin = name.partition("/")[0]
    known = plugin in found
    return Meant(tuple(folders), frozenset({plugin} if known else found), plugin if known else "", name)


@asynccontextmanager
async def serve_alone(
    name: str, folders: Sequence[Path], scratch: Path, interpreters: Interpreters | None = None
) -> AsyncIterator[tuple[EnvironmentService, EnvironmentInfo]]:
    """Serve the environment ``name`` (see ``meant``) until the block ends.

    Raises ``EnvironmentMissing``. A plugin that does not load is found, but ``bind`` raises.
    """
    wish = meant(name, folders)
    async with served(wish.folders, wish.plugins, scratch, interpreters) as service:
        yield service, chosen(wish, service.infos())


@asynccontextmanager
async def served(
    folders: Sequence[Path], plugins: frozenset[str], scratch: Path, interpreters: Interpreters | None = None
) -> AsyncIterator[EnvironmentService]:
    """Serve these plugins until the block ends; see ``settled``."""
    service = EnvironmentService(folders, scratch, only=plugins, interpreters=interpreters)
    try:
        await settled(service)
        yield service
    finally:
        await service.stop()


async def found_alone(
    names: Sequence[str], folders: Sequence[Path], scratch: Path, interpreters: Interpreters | None = None
) -> tuple[EnvironmentInfo, ...]:
    """All environments of the plugins that the names may mean, broken ones included."""
    plugins: set[str] = set()
    for name in names:
        if not _is_path(name):
            plugins |= meant(name, folders).plugins
    async with served(folders, frozenset(plugins), scratch, interpreters) as service:
        return service.infos()


async def settled(service: EnvironmentService) -> None:
    """Read the files, and wait until every changed plugin serves, has failed, or waits for a person."""
    if proofs := await service.scan():
        await asyncio.wait(proofs)
    while service.settling:
        await asyncio.sleep(LOOK)


def chosen(wish: Meant, infos: Collection[EnvironmentInfo]) -> EnvironmentInfo:
    """The meant environment; a plugin's only one needs no name. Raises ``EnvironmentMissing``."""
    own = [info for info in infos if info.name.partition("/")[0] == wish.plugin]
    if wish.environment == wish.plugin and len(own) == 1:
        return own[0]
    return find(wish.environment, own or list(infos))


def _is_path(name: str) -> bool:
    return name.startswith(_PATH_STARTS) or name.endswith((*SUFFIXES, "/")) or Path(name).parent.suffix in SUFFIXES


def _at(name: str) -> Meant:
    path, environment = Path(os.path.expanduser(name)).absolute(), ""
    if not path.exists() and path.parent.suffix in SUFFIXES:
        path, environment = path.parent, path.name
    if not path.exists():
        leads = f"{path} is a link that leads nowhere." if path.is_symlink() else f"There is no file or folder {path}."
        raise EnvironmentMissing(leads)
    plugins = plugin_paths(path.parent)
    plugin = next((found for found, entry in plugins.items() if entry == path), "")
    if not plugin:
        raise EnvironmentMissing(
            "is no environment plugin.",
            "That is a file NAME.py or NAME.toml, or a folder with an __init__.py or an openenv.yaml; its name begins"
            " with neither . nor _.",
            where=str(path),
        )
    return Meant((path.parent,), frozenset({plugin}), plugin, f"{plugin}/{environment}" if environment else plugin)


@dataclass(frozen=True)
class Peek:
    """First prompts, without a model or an engine."""

    info: EnvironmentInfo
    asks: tuple[Ask, ...] = ()
    problem: str = ""


async def first_prompts(
    name: str,
    config: Mapping[str, Any],
    count: int,
    folders: Sequence[Path],
    scratch: Path,
    interpreters: Interpreters | None = None,
    data: Mapping[str, Any] | None = None,
    opening: Callable[[], AbstractContextManager[Opens | None]] = nullcontext,
) -> Peek:
    """Draw ``count`` instances; 0: only describe.

    ``data`` as in ``EnvironmentService.bind``; ``opening`` gives a program its address, without it prompts are empty.
    Raises ``EnvironmentMissing`` and ``ConfigError``.
    """
    async with serve_alone(name, folders, scratch, interpreters) as (service, info):
        asks: list[Ask] = []
        if not count:
            return Peek(info)
        try:
            with await service.bind(info.name, config=config, data=data) as lease:
                for index in range(count):
                    spec = EpisodeSpec("train", index, seed=0, member=0, config=lease.config, timeout=PATIENCE)
                    with opening() as opens:
                        asks.append(await service.peek(lease, spec, opens))
        except EnvironmentFailure as failure:
            return Peek(info, tuple(asks), str(failure))
        return Peek(info, tuple(asks))
