"""Repeats a pass that a device has no memory for, in passes of half the size.

What the failed attempt has added is undone first, so that nothing counts twice. Raises ``AdapterError`` where not even
the smallest pass fits. Knows no model and no policy.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from ..devices import ran_out
from ..errors import AdapterError

log = logging.getLogger(__name__)
R = TypeVar("R")


class DeviceFull(Exception):
    """A device has no memory for a pass; ``args`` are its name for people. Holds none of the pass's tensors."""


def on(name: str, work: Callable[[], R]) -> R:
    """Do work on the device called ``name``. Raises ``DeviceFull`` instead of what torch raises."""
    try:
        return work()
    except Exception as error:
        if not ran_out(error):
            raise
        log.warning("No memory on %s: %s", name, error)
    raise DeviceFull(name)  # outside of the handler, so that the pass's frames and tensors are freed


class PassBackoff:
    """Repeats work in smaller passes if it does not fit. ``shrink`` halves a pass; False if it is the smallest."""

    def __init__(self, shrink: Callable[[], bool]) -> None:
        self._shrink = shrink
        self._notices: list[str] = []

    def make(self, work: Callable[[], R], undo: Callable[[], None] = lambda: None) -> R:
        """Do work; if it raises ``DeviceFull``, ``undo`` what it has changed and repeat it in passes of half the size.

        Raises ``AdapterError`` if passes cannot be made smaller; everything is undone then, too.
        """
        while True:
            try:
                return work()
            except DeviceFull as error:
                (name,) = error.args
            undo()
            release()
            if not self._shrink():
                raise AdapterError(
                    f"Training ran out of memory on {name}, even with a single sequence in a pass.",
                    "Lower `max_episode_tokens` in the task file or the rank, or leave the trainer more memory.",
                )
            notice = f"Training ran out of memory on {name}; passes are half as large from now on."
            log.warning(notice)
            self._notices.append(notice)

    def notice(self) -> str:
        """What has happened since the last call, in a sentence; empty where nothing has."""
        notices, self._notices = self._notices, []
        if len(notices) > 1:
            return notices[-1].replace("half as large", f"{2 ** len(notices)} times smaller")
        return "".join(notices)


def once_more(name: str, work: Callable[[], R]) -> R:
    """Do work that is not a pass, and repeat it once if memory ran out. Raises ``AdapterError`` if it does again."""
    try:
        return on(name, work)
    except DeviceFull:
        release()
    try:
        return on(name, work)
    except DeviceFull:
        raise AdapterError(
            f"There is no memory on {name} for an optimizer step.",
            "Lower the rank in the task file or `slots` under [training] in marlaas.toml, or leave the trainer more.",
        ) from None


def release() -> None:
    """Give cached memory back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
