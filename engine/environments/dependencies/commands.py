"""The commands that make a virtual environment, and the variables that they see. Pure.

Flows in: a set of libraries, the settings, and whether uv is here. Flows out: argument lists, to be run one after the
other. Without uv, marlaas's own pip installs into a bare environment: none of the environments holds a pip.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ...home import EnvironmentSettings
from .venv import Venv

_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_KEPT_STARTS = ("UV_", "PIP_")
_NOT_KEPT = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV", "UV_PYTHON")
"""Where to install is decided here."""
_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), ("PIP_INDEX_URL",)


class NoInstaller(ValueError):
    """Neither uv nor pip is here."""


def find_uv() -> str | None:
    """uv on the PATH or beside marlaas's own Python."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def commands(venv: Venv, settings: EnvironmentSettings, uv: str | None) -> list[list[str]]:
    """What builds ``venv``; raises ``NoInstaller``."""
    base = str(venv.base.executable)
    if uv is not None:
        made = [uv, "venv", "--quiet", "--no-project", "--python", base, str(venv.folder)]
        install = [uv, "pip", "install", "--python", str(venv.python), "--compile-bytecode"]
    else:
        made = [base, "-m", "venv", "--without-pip", str(venv.folder)]
        install = [sys.executable, "-m", "pip", "--python", str(venv.python), "install"]
        install += ["--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    if not venv.dependencies:
        return [made]
    if uv is None and find_spec("pip") is None:
        raise NoInstaller("neither uv nor pip is here to install libraries with")
    return [made, [*install, *_sources(settings, uv is not None), *venv.dependencies]]


def _sources(settings: EnvironmentSettings, uv: bool) -> list[str]:
    """Where wheels are taken from."""
    folder = ["--find-links", settings.wheels] if settings.wheels else []
    if not settings.offline:
        return folder
    if not uv:
        return ["--no-index", *folder]
    return ["--offline", "--no-index", *folder] if folder else ["--offline"]  # without an index its cache has nothing


def in_words(settings: EnvironmentSettings, uv: str | None, variables: Mapping[str, str]) -> str:
    """Where libraries will come from, for the person who is asked."""
    places = [f"the folder {settings.wheels}"] if settings.wheels else []
    if settings.offline:
        return " and ".join([*places, *(["uv's cache"] if uv and not places else [])]) or "nowhere: offline is set"
    index = next((variables[name] for name in _INDEX[uv is None] if variables.get(name)), "")
    tool = "pip" if uv is None else "uv"
    places.append(f"the index {_without_password(index)}" if index else f"the index that {tool} is set up for")
    return " and ".join(places)


def variables_for_build(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the engine's variables that installing may need; a plugin sees none of them."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _NOT_KEPT and (name in _KEPT or name.startswith(_KEPT_STARTS) or name.lower().endswith("_proxy"))
    }


def _without_password(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    host = rest.partition("/")[0]
    return f"{scheme}{mark}{rest[host.rfind('@') + 1 :]}" if mark else address
