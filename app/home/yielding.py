"""Tells whoever starts an engine or submits tasks that the tasks wait, until when, and why."""

from __future__ import annotations

import time

from marlaas.engine.home import Home

from ..reading.opening import reading
from ..words.yielding import yielding_of, yielding_text


def why_tasks_wait(home: Home) -> str:
    """Why no task of a home runs although its engine serves; empty where tasks may run."""
    with reading(home) as reader:
        yielding = yielding_of(reader.engine() if reader else None)
    return yielding_text(yielding, time.time()) if yielding is not None and yielding.holds else ""
