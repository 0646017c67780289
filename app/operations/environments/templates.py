"""Templates of environments: ``plugins/templates`` with another name, one for each shape."""

from __future__ import annotations

import io
import keyword
import re
from pathlib import Path

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, TEMPLATES, Home

SHAPES = {
    "single": "one question, one answer",
    "rows": "questions from a file of rows",
    "turns": "a game of several turns",
    "tools": "tools for the model to call",
    "agents": "two roles that work together",
    "players": "two players, one of whom wins",
    "code": "code of the model's, run in a sandbox",
    "score": "scored by a function apart from the episode",
    "class": "a class, with a costly set-up done once",
}
LONGEST = 64


def write_template(name: str, shape: str, folder: Path, home: Home) -> list[Path]:
    """Write an environment of that shape; returns its files. Raises ``ConfigError``; overwrites nothing."""
    texts = written(name, shape)
    check_free(name, folder, home)
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with open(folder / file, "x", encoding="utf-8") as target:
                made.append(folder / file)
                target.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise ConfigError(f"cannot be written: {error.strerror}.", where=str(error.filename or folder)) from error
    return [folder / file for file in texts]


def written(name: str, shape: str) -> dict[str, str]:
    """Files and their texts. Raises ``ConfigError`` for a bad name."""

    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or len(name) > LONGEST:
        raise ConfigError(
            f"{name!r} is no name for an environment.",
            f"Take up to {LONGEST} letters (a to z), digits and _, a letter first, and no word of Python's.",
        )
    if name.startswith("_"):
        raise ConfigError(f"{name!r} would not be served: names that begin with _ are passed over.")
    sources = {path.suffix: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob(f"{shape}.*"))}
    if name in _used(sources[".py"]):
        raise ConfigError(f"{name!r} means something else in that template.", "Take another name.")
    return {f"{name}{suffix}": re.sub(r"\bmy_env\b", name, text) for suffix, text in sources.items()}


def _used(code: str) -> set[str]:
    import tokenize

    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def check_free(name: str, folder: Path, home: Home) -> None:
    """Raise ``ConfigError`` if another plugin has the name."""

    taken = [path for path in (folder / name, *sorted(folder.glob(f"{name}.*"))) if path.exists()]
    if taken:
        raise ConfigError(f"{taken[0]} is there already.", "Nothing was written; take another name.")
    if folder.resolve() == home.plugins.resolve() and (BUNDLED_PLUGINS / f"{name}.py").exists():
        raise ConfigError(f"{name!r} is an environment that comes with marlaas; yours would hide it.")
