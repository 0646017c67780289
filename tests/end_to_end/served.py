"""Waiting for an environment of a real engine to be what a test expects of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow

from .conftest import PATIENCE, Lab


def environment(lab: Lab, name: str, suits: Callable[[EnvironmentRow], bool]) -> EnvironmentRow:
    """Wait until an environment is as wanted."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with Reader(lab.home.database) as reader:
            for row in reader.environments():
                if row.name == name and suits(row):
                    return row
        time.sleep(0.02)  # the engine is another process: there is nothing to await
    raise AssertionError(lab.marlaas("env", "list"))


def served(lab: Lab, name: str, state: str, other_than: str = "") -> str:
    """Wait until an environment is in a state, in another version than the one given; returns its version."""
    return environment(lab, name, lambda row: row.state == state and row.version != other_than).version
