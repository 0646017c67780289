"""Paths of a home's files. Standard library and platformdirs only. Only ``Home.create`` creates anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdapterUnreachable, ConfigError

BUNDLED_PLUGINS = Path(__file__).resolve().parents[2] / "plugins" / "bundled"
TEMPLATES = BUNDLED_PLUGINS.with_name("templates")
INSIDE = "marlaas reads and deletes nothing outside of its home: move the whole home instead of a part of it."
TINY_BASE = Path(__file__).resolve().parents[1] / "base" / "tiny"


@dataclass(frozen=True)
class Home:
    """One state folder: a database, its engine and its adapters belong together."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "marlaas.toml"

    @property
    def database(self) -> Path:
        return self.root / "marlaas.db"

    @property
    def plugins(self) -> Path:
        return self.root / "plugins"

    @property
    def adapters(self) -> Path:
        return self.root / "adapters"

    @property
    def lost(self) -> Path:
        """Files that no version names, kept for a person because versions turned out to be damaged."""
        return self.root / "lost+found"

    @property
    def base(self) -> Path:
        """Base models converted for llama.cpp; can be deleted at any time."""
        return self.root / "base"

    @property
    def bases(self) -> Path:
        return self.root / "bases"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def screenshots(self) -> Path:
        """Users' pictures of the terminal application; can be deleted at any time."""
        return self.root / "screenshots"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def venvs(self) -> Path:
        """Libraries of plugins; can be deleted while no engine runs."""
        return self.root / "venvs"

    @property
    def rates(self) -> Path:
        """Measured rates of the machine's devices; can be deleted at any time."""
        return self.root / "rates.json"

    @property
    def speeds(self) -> Path:
        """Measured speeds of bases; can be deleted at any time."""
        return self.root / "speeds.json"

    @property
    def lock(self) -> Path:
        return self.root / "engine.lock"

    @property
    def cluster_token(self) -> Path:
        """The token of this machine's cluster, unless the settings name another file."""
        return self.root / "cluster.token"

    @property
    def node_lock(self) -> Path:
        """The lock file that this machine's Ray holds while it lives."""
        return self.root / "node.lock"

    def name_of(self, path: Path) -> str:
        """A file's path relative to the home, for the database, so that the home can be moved and copied."""
        return path.relative_to(self.root).as_posix()

    def file(self, name: str | Path) -> Path:
        """The absolute path for such a relative one. Raises ``AdapterUnreachable`` if it is outside of the home."""
        path = self.root / name
        if not path.is_relative_to(self.root) or ".." in path.relative_to(self.root).parts:
            raise AdapterUnreachable(f"{name} does not lie in the home {self.root}.", INSIDE)
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if os.path.commonpath((real, root)) != root:
            raise AdapterUnreachable(f"leads out of the home, to {real}.", INSIDE, where=str(path))
        return path

    def create(self) -> Home:
        """Create the folders, readable only by their owner. Raises ``ConfigError`` if that fails.

        The folder for adapters is created only with the home: one that is missing later may only be unmounted.
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
    """The home that the user means: ``--home``, else ``MARLAAS_HOME``, else the platform's state folder."""
    chosen = given or os.environ.get("MARLAAS_HOME")
    if chosen:
        return Home(Path(chosen).expanduser().absolute())
    from platformdirs import user_state_path

    return Home(user_state_path("marlaas", appauthor=False))
