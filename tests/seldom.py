"""Cases that only ``make test-slow`` meets: what they show is shown every day by the others of their test."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def seldom(*values: object) -> ParameterSet:
    """One case, of one or several values."""
    return pytest.param(*values, marks=pytest.mark.slow)


def often(daily: Collection[Any], cases: Iterable[Any], several: bool = False) -> list[Any]:
    """All cases, of which these alone are met every day; with ``several``, a case is a tuple of arguments."""
    return [case if case in daily else seldom(*case) if several else seldom(case) for case in cases]
