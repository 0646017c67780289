"""Paths of a home's files. Standard library and platformdirs only."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdapterUnreachable, ConfigError


def version() -> str:
    """The installed package's, "0.2.0"."""
    from importlib.metadata import version as installed

    return installed("marlaas")


BUNDLED_PLUGINS = Path(__file__).resolve().parents[2] / "plugins" / "bundled"
TEMPLATES = BUNDLED_PLUGINS.with_name("templates")
INSIDE = "marlaas reads and deletes nothing outside of its home: move the whole home instead of a part of it."
TINY_BASE = Path(__file__).resolve().parents[1] / "models" / "tiny"


class _Place:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, owner: type[Home]) -> Path:
        return home.root / self._name


@dataclass(frozen=True)
class Home:
    """One state folder: database, engine and adapters."""

    root: Path

    config = _Place("marlaas.toml")
    database = _Place("marlaas.db")
    plugins = _Place("plugins")
    adapters = _Place("adapters")
    lost = _Place("lost+found")
    """Unnamed files, kept because versions were damaged."""
    base = _Place("base")
    """For llama.cpp; may be deleted."""
    bases = _Place("bases")
    logs = _Place("logs")
    screenshots = _Place("screenshots")
    scratch = _Place("scratch")
    venvs = _Place("venvs")
    """May be deleted while no engine runs."""
    rates = _Place("rates.json")
    speeds = _Place("speeds.json")
    lock = _Place("engine.lock")
    cluster_token = _Place("cluster.token")
    node_lock = _Place("node.lock")

    def name_of(self, path: Path) -> str:
        """Relative to the home, which can be moved."""
        return path.relative_to(self.root).as_posix()

    def file(self, name: str | Path) -> Path:
        """Raises ``AdapterUnreachable`` outside of the home."""
        path = self.root / name
        if not path.is_relative_to(self.root) or ".." in path.relative_to(self.root).parts:
            raise AdapterUnreachable(f"{name} does not lie in the home {self.root}.", INSIDE)
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if os.path.commonpath((real, root)) != root:
            raise AdapterUnreachable(f"leads out of the home, to {real}.", INSIDE, where=str(path))
        return path

    def create(self) -> Home:
        """For the owner only. Raises ``ConfigError``.

        Adapters' folder only with the home: a missing one may be unmounted.
        """
        folders = [self.root, self.plugins, self.base, self.logs, self.scratch]
        try:
            if not self.database.exists():
                folders.append(self.adapters)
            for folder in folders:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The home cannot be made: {error.strerror}.",
                "Choose another with --home or MARLAAS_HOME.",
                where=str(self.root),
            ) from error
        return self


def find_home(given: str | None = None) -> Home:
    """``--home``, else ``MARLAAS_HOME``, else the platform's state folder."""
    chosen = given or os.environ.get("MARLAAS_HOME")
    if chosen:
        return Home(Path(chosen).expanduser().absolute())
    from platformdirs import user_state_path

    return Home(user_state_path("marlaas", appauthor=False))


def is_home(folder: Path) -> bool:
    """It has a database or settings."""
    home = Home(folder)
    return os.path.exists(home.database) or os.path.exists(home.config)


def check_home(home: Home) -> None:
    """Raises ``ConfigError`` if it is no home."""
    check_folder(home)
    if is_home(home.root):
        return
    why = "there is no such folder"
    if home.root.exists():
        why = "the folder holds other things" if any(home.root.iterdir()) else "the folder is empty"
    raise ConfigError(f"No home at {home.root}: {why}.", f"`{command_for(home, 'home new')}` makes one there.")


def check_folder(home: Home) -> None:
    """Raises ``ConfigError`` if it is, or lies below, a file, or is unreadable."""
    try:
        for path in (home.root, *home.root.parents):
            if path.is_dir():
                if path == home.root:
                    os.scandir(path).close()
                return
            if path.exists():
                raise ConfigError(f"A home is a folder, but {path} is a file.", "Give a folder with --home.")
    except OSError as error:
        says = f"The home {home.root} cannot be read: {error.strerror}."
        raise ConfigError(says, "Mend its permissions, or give another with --home.") from error


def command_for(home: Home, words: str) -> str:
    """A command line for this home."""
    return f"marlaas --home {shlex.quote(str(home.root))} {words}"
