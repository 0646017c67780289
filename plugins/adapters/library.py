"""Imports a foreign library when its adapter is used, or reports in one sentence what is missing.

The ``ModuleNotFoundError`` gives the author of the plugin the line to add.
"""

from __future__ import annotations

import importlib
from typing import Any

from .catalogue import REQUIREMENT_OF_MODULE


def library(module: str) -> Any:
    """The module; ``ModuleNotFoundError`` has the command to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error in words for the author of the plugin, at the same place in the code."""
    name = error.name or ""
    requirement = REQUIREMENT_OF_MODULE.get(name.partition(".")[0])
    if requirement is None:
        words = f"{error}: add what provides it to the plugin's dependencies"
    else:
        words = (
            f"this plugin needs {requirement}: add it to the plugin's dependencies, which a .py file names between the "
            f"comments '# /// script' and '# ///', and a .toml file under dependencies"
        )
    return ModuleNotFoundError(words, name=name).with_traceback(error.__traceback__)
