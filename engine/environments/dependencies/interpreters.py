"""A plugin's Python: marlaas's own, or one with its declared libraries.

Nothing here waits: ``Waiting`` is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import marlaas.plugins

from ...home.disk import folder_size
from ...home.settings import EnvironmentSettings
from ...trajectories import Failure
from ..files.source import Source, SourceError, plugin_paths, read_source
from ..process.launch import NICE, Confinement, Runtime, obstacle, readable_for
from .requirements import DeclarationError, Requirements, named, requirements_of
from .venv import OWN, BuildFailed, NoPython, Stamp, Venv, build, suitable

INSTALLED = Path(marlaas.plugins.__file__).resolve().parent
_LOOK = 0.5

Warn = Callable[[str], None]


class Refused(Exception):
    """The plugin cannot run here as it is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Waiting(Exception):
    """The plugin can run later; the message is a sentence."""

    def __init__(
        self, state: Literal["waiting", "building"], message: str, over: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(message)
        self.state = state
        """``waiting`` for a person, or ``building``."""
        self.over = over


class Interpreters:
    """The Pythons of one home's plugins."""

    def __init__(self, folder: Path, settings: EnvironmentSettings, nice: int = 0) -> None:
        """``folder``: virtual environments. ``nice``: added to the processes' niceness."""
        self.settings = settings
        self._folder = folder
        self._nice = NICE + nice
        self._failed: dict[Path, tuple[Stamp, str]] = {}

    async def of(self, source: Source, warn: Warn = lambda message: None) -> Runtime:
        """Raises ``Refused`` and ``Waiting``; ``warn`` gets a refused wish."""
        requirements, venv = await asyncio.to_thread(needs_of, source, self._folder)
        python, api = OWN.executable, None
        if venv is not None:
            if not venv.built:
                raise self._held_up(venv, source.name)
            python, api = venv.python, author_api(self._folder)
        confined = not requirements.limits.network or self.settings.sandbox
        confinement = await self._confinement(python, api, warn) if confined else None
        limits = requirements.limits
        return Runtime(
            python,
            api,
            limits.memory_mb,
            confinement,
            self._nice,
            limits.processes,
            limits.episodes,
        )

    def _held_up(self, venv: Venv, plugin: str) -> Exception:
        wanted = f"needs {named(venv.dependencies)}" if venv.dependencies else f"needs Python {venv.base.version}"
        again = f"`marlaas env allow {plugin}`"
        stamp = venv.stamp()  # before the look, so that no later change is missed
        failed_at, failure = self._failed.get(venv.folder, (None, ""))
        if self.settings.allow == "never":
            return Refused(Failure(f'{wanted}, which `allow = "never"` under [environments] in marlaas.toml forbids'))
        changed = partial(_changed, venv, stamp)
        if self.settings.allow == "ask" and not venv.allowed:
            return Waiting("waiting", f"{wanted}: allow with {again}", changed)
        if failed_at == stamp:
            return Waiting("waiting", f"{wanted}, which cannot be installed: {failure}; {again} tries again", changed)
        return Waiting("building", f"{wanted}, which is being installed", partial(self._build, venv))

    async def _build(self, venv: Venv) -> None:
        before = venv.stamp()
        try:
            await build(venv, self.settings)
        except BuildFailed as error:
            self._failed[venv.folder] = before, str(error)

    async def _confinement(self, python: Path, api: Path | None, warn: Warn) -> Confinement | None:
        readable = (*readable_for(python), INSTALLED, *([api] if api is not None else []))
        confinement = Confinement((self._folder.parent,), readable)
        reason = confinement.contradiction() or await asyncio.to_thread(obstacle)
        if not reason:
            return confinement
        if self.settings.sandbox:
            raise Refused(
                Failure(f"`sandbox = true` under [environments] in marlaas.toml cannot be kept here: {reason}")
            )
        warn(f"it asks to run without a network, which cannot be kept here: {reason}")
        return None


def needs_of(source: Source, folder: Path) -> tuple[Requirements, Venv | None]:
    """A plugin's declaration, and its virtual environment below ``folder``, if any.

    Raises ``Refused``. May start processes.
    """
    try:
        requirements = requirements_of(source)
        base = suitable(requirements.requires_python)
    except DeclarationError as error:
        raise Refused(Failure(str(error), error.file, error.line)) from None
    except NoPython as error:
        raise Refused(Failure(str(error))) from None
    own = base == OWN and not requirements.dependencies
    return requirements, None if own else Venv.of(requirements, base, folder)


def author_api(folder: Path) -> Path:
    """A ``PYTHONPATH`` below ``folder`` with only ``marlaas.plugins``.

    A link to its author API: an import cannot reach the packages next to it.
    """
    made = folder / f"api-{sha256(str(INSTALLED).encode()).hexdigest()[:12]}"
    package = made / "marlaas"
    package.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (package / "plugins").symlink_to(INSTALLED, target_is_directory=True)
    return made


async def _changed(venv: Venv, before: Stamp) -> None:
    while venv.stamp() == before:
        await asyncio.sleep(_LOOK)


# Nothing is removed: a pinned task may need an older version's libraries.


@dataclass(frozen=True)
class Installed:
    """One set of libraries, complete or not."""

    folder: Path
    size: int
    """Bytes."""
    claimed: bool


def installed(venvs: Path, plugins: Sequence[Path]) -> list[Installed]:
    """Sets below ``venvs``, by name, with the claims of ``plugins``.

    May start processes.
    """
    with contextlib.suppress(OSError), os.scandir(venvs) as entries:
        folders = sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith((".", "api-")))
        claims = _claims(venvs, plugins) if folders else set()
        return [Installed(folder, folder_size(folder), folder in claims) for folder in folders]
    return []


def _claims(venvs: Path, plugins: Sequence[Path]) -> set[Path]:
    found = set()
    for path in (path for folder in plugins for path in plugin_paths(folder).values()):
        with contextlib.suppress(OSError, SourceError, Refused):
            _, venv = needs_of(read_source(path), venvs)
            if venv is not None:
                found.add(venv.folder)
    return found
