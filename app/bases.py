"""What bases there are for a home: what ships, its own, and what the Hugging Face cache holds, each with its faults.

A home flows in, frozen rows flow out. Reads headers and tokenizers, never weights, and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.base.find import SHIPPED, cached_bases
from marlaas.engine.errors import MarlaasError
from marlaas.engine.paths import Home


@dataclass(frozen=True)
class BaseRow:
    """One base."""

    name: str
    """As `base use` takes it."""
    path: str
    """Its folder; empty where there is none."""
    architecture: str = ""
    parameters: int | None = None
    size: int | None = None
    """Bytes on disk."""
    context: int | None = None
    """Tokens that it was made for."""
    used: bool = False
    """Whether it is the home's base."""
    problem: str = ""
    """What is wrong with it, in one sentence."""
    hint: str = ""


def list_bases(home: Home) -> list[BaseRow]:
    """Every base that is here, incomplete ones with what they lack. Raises ``ConfigError`` for bad settings."""
    from marlaas.engine.config import load_settings

    used = load_settings(home).base
    names = [*SHIPPED, *(base.name for base in cached_bases())]
    folder = _folder(used)
    rows = [_row(name, used=name == used or (folder is not None and folder == _folder(name))) for name in names]
    return rows if any(row.used for row in rows) else [*rows[: len(SHIPPED)], _row(used, True), *rows[len(SHIPPED) :]]


def _row(name: str, used: bool) -> BaseRow:
    """What is known of one base, as far as it can be read."""
    from marlaas.engine.base.find import find_base
    from marlaas.engine.base.model import load_base
    from marlaas.engine.base.soundness import check_base, parameters

    row = BaseRow(name, "", used=used)
    try:
        path = find_base(name)
        row = BaseRow(name, str(path), size=_size(path), used=used)
        base = load_base(path)
        row = BaseRow(name, str(path), base.config.architecture, None, row.size, base.config.context_length, used)
        row = BaseRow(name, str(path), row.architecture, parameters(base), row.size, row.context, used)
        check_base(base)
    except MarlaasError as error:
        known = {key: value for key, value in vars(row).items() if key not in ("problem", "hint")}
        return BaseRow(**known, problem=error.message, hint=error.hint)
    return row


def _folder(name: str) -> Path | None:
    from marlaas.engine.base.find import find_base

    try:
        return find_base(name).resolve()
    except MarlaasError:
        return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.is_file())
