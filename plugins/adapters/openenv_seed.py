"""Finds out if a method uses its seed: many take one and ignore it.

The code of the class is read, and never run.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any


def takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function can be called with that keyword."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def seed_is_read(environment: type) -> bool:
    """True if ``reset`` (or ``reset_async``) reads its ``seed``, or the keywords that could contain one."""
    return any(_reads(getattr(environment, name, None)) for name in ("reset", "reset_async") if _own(environment, name))


def _own(environment: type, name: str) -> bool:
    """True if the author wrote this method: the library's own ``reset_async`` only passes arguments on."""
    owner = next((base for base in environment.__mro__ if name in vars(base)), None)
    return owner is not None and not owner.__module__.startswith("openenv.core")


def _reads(function: Any) -> bool:
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return True  # not Python: unknown
    parameters = inspect.signature(function).parameters
    names = {"seed"} if "seed" in parameters else set()
    names |= {each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD and not names}
    return any(step.argval in names and step.opname.startswith("LOAD") for step in _instructions(code))


def _instructions(code: CodeType) -> list[dis.Instruction]:
    nested = [
        inner for constant in code.co_consts if isinstance(constant, CodeType) for inner in _instructions(constant)
    ]
    return [*dis.get_instructions(code), *nested]
