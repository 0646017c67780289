"""Hints that plugin folders may have changed.

Events get lost (a folder made again, a moved link), so hints also come every few seconds. Network file systems are
polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path

from watchfiles import Change, awatch

from ...home.guard import networked
from .source import ignored

_DEBOUNCE_MS = 50
_STEP_MS = 20
_SILENCE_MS = 2000


async def hints(
    folders: Sequence[Path], on_refusal: Callable[[str], None] = lambda why: None
) -> AsyncGenerator[None, None]:
    """Yields hints until cancelled.

    ``on_refusal``: called once if the system does not watch the folders; then they are polled.
    """
    refused = False
    while True:
        present = [folder for folder in folders if folder.is_dir()]
        seen = _identities(present)
        if not present:
            await asyncio.sleep(_SILENCE_MS / 1000)
        polling = refused or any(networked(folder) for folder in present)
        try:
            async for _ in _watch(present, polling):
                yield
                if _identities([folder for folder in folders if folder.is_dir()]) != seen:
                    break
        except FileNotFoundError:
            await asyncio.sleep(_DEBOUNCE_MS / 1000)
        # RuntimeError: no watches left. Else an entry without permission.
        except (OSError, RuntimeError, ExceptionGroup) as error:
            if not (refused or polling):
                on_refusal(" ".join(str(error).split()))
            refused = True
            if polling:
                await asyncio.sleep(_SILENCE_MS / 1000)
        yield


def _watch(folders: Sequence[Path], polling: bool) -> AsyncIterator[object]:
    return awatch(
        *folders,
        watch_filter=_matters,
        debounce=_DEBOUNCE_MS,
        step=_STEP_MS,
        rust_timeout=_SILENCE_MS,
        yield_on_timeout=True,
        force_polling=polling or None,
    )


def _matters(_change: Change, path: str) -> bool:
    return not ignored(Path(path).name) and "__pycache__" not in path


def _identities(folders: Sequence[Path]) -> list[tuple[int, int]]:
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            status = folder.stat()
            found.append((status.st_dev, status.st_ino))
    return found
