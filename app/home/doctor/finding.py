"""One line of the report of ``marlaas doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was looked at, and the verdict."""

    name: str
    verdict: str
    """ok, note (works, worth knowing) or missing (something will not work)"""
    value: str
    advice: str = ""
    """What to do about it."""
