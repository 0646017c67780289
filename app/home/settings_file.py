"""Writes a setting into ``marlaas.toml`` and leaves everything else as its owner wrote it: comments, order, other keys.

Knows no base and no engine; tomlkit is imported when there is something to write.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from marlaas.engine.errors import ConfigError
from marlaas.plugins.durable import to_disk

_DOCUMENTED = re.compile(r'^#[ \t]*base[ \t]*=[ \t]*"[^"\n]*"[ \t]*(?=\r?$)', re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def write_base(path: Path, name: str) -> None:
    """Set ``base`` in the settings file. Raises ``ConfigError`` where it cannot be read or written."""
    _rewrite(path, partial(with_base, name=name))


def write_sampler(path: Path, name: str) -> None:
    """Set ``sampler`` under [rollout] in the settings file. Raises as ``write_base``."""
    _rewrite(path, partial(with_word, table="rollout", key="sampler", word=name))


def write_cluster(path: Path, address: str) -> None:
    """Set ``address`` under [cluster] in the settings file. Raises as ``write_base``."""
    _rewrite(path, partial(with_word, table="cluster", key="address", word=address))


def with_word(text: str, table: str, key: str, word: str) -> str:
    """The TOML ``text`` with ``key = word`` under ``[table]``. Raises ``ValueError`` for what is no TOML."""
    import tomlkit

    document = tomlkit.parse(text)
    document.setdefault(table, tomlkit.table())[key] = word
    return tomlkit.dumps(document)


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    try:
        text = path.read_bytes().decode() if path.exists() else ""  # line ends as they are
        _replace(path, change(text))
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}.", where=str(path)) from error
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}.", "Mend it first.", where=str(path)) from error


def with_base(text: str, name: str) -> str:
    """The TOML ``text`` with ``base = name``, in the place of the documented line where that stands. Raises
    ``ValueError`` for what is no TOML."""
    import tomlkit

    document = tomlkit.parse(text)
    if "base" in document:
        document["base"] = name
        return tomlkit.dumps(document)
    setting = f"base = {tomlkit.string(name).as_string()}"
    documented = _DOCUMENTED.search(text)
    table = _TABLE.search(text)
    wanted = tomllib.loads(text) | {"base": name}
    if documented and (table is None or documented.start() < table.start()):
        result = text[: documented.start()] + setting + text[documented.end() :]
        if _means(result, wanted):
            return result
    return f"{setting}\n{text}"


def _means(text: str, wanted: dict[str, object]) -> bool:
    """Whether the text now has this base; the documented line may have been part of a longer text."""
    try:
        return tomllib.loads(text) == wanted
    except (ValueError, RecursionError):
        return False


def _replace(path: Path, text: str) -> None:
    """Replace the file whole or not at all, and keep its permissions; where it is a link, its target is replaced."""
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        to_disk(Path(temporary))
        if path.exists():
            os.chmod(temporary, path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
