"""Folders in a worker's arguments, by what they are for: the engine names them, a node puts its own in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base import BaseModel, load_base
from ..errors import BaseModelError, MarlaasError
from ..home import Home, load_settings


@dataclass(frozen=True)
class BaseFolder:
    """The base model with a fingerprint."""

    fingerprint: str
    path: str
    """Where it lies on the engine's machine; looked at on a node, too, since many labs mount it everywhere."""
    file: str = ""
    """A file in it that is meant, such as the GGUF that it was made of."""


@dataclass(frozen=True)
class OwnFolder:
    """A folder of the node's own home."""

    name: Literal["base", "scratch"]


def named(kwargs: Mapping[str, Any], base: BaseModel, home: Home) -> dict[str, Any]:
    """Arguments for a worker of this home with its folders named by what they are for. Pure."""
    folders = {
        str(base.path): BaseFolder(base.fingerprint, str(base.path)),
        str(home.base): OwnFolder("base"),
        str(home.scratch): OwnFolder("scratch"),
    }

    if base.gguf:
        folders[str(base.gguf)] = BaseFolder(base.fingerprint, str(base.path), base.gguf.name)

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: other(each) for key, each in value.items()}
        return folders.get(value, value) if isinstance(value, str) else value

    return {key: other(value) for key, value in kwargs.items()}


def resolve(kwargs: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """The arguments with the folders of this node's ``home``, which are made where they are missing.

    Raises ``BaseModelError`` where the base is not here.
    """

    def here(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: here(each) for key, each in value.items()}
        if isinstance(value, BaseFolder):
            return str(find_base(value, home) / value.file)
        if isinstance(value, OwnFolder):
            folder = {"base": home.base, "scratch": home.scratch}[value.name]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return str(folder)
        return value

    return {key: here(value) for key, value in kwargs.items()}


def find_base(wanted: BaseFolder, home: Home) -> Path:
    """The folder of a base on this node: that of its own settings, or at the same path as on the engine's machine.

    Raises ``BaseModelError`` where neither has its fingerprint.
    """
    names = [wanted.path]
    with contextlib.suppress(MarlaasError):  # what is wrong with them is told with the node's inventory
        names.insert(0, load_settings(home).base)
    for name in names:
        try:
            found = load_base(name)
        except MarlaasError:
            continue
        if found.fingerprint == wanted.fingerprint:
            return found.path
    raise BaseModelError(
        f"The engine's base is not on this node: {Path(wanted.path).name}, fingerprint {wanted.fingerprint[:12]}.",
        "Copy the folder there, and name it as `base` in that machine's marlaas.toml.",
        where=wanted.path,
    )
