"""Pictures of the real program on a real home, for the documentation.

Runs without a terminal, waits for the store, writes each view as SVG.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot

from marlaas.engine.home.paths import Home

from .app import MarlaasApp
from .tui.frame.modes import ALL_MODES

SIZE = (120, 36)
VIEWS = tuple(mode.name for mode in ALL_MODES)


def save_screenshots(
    home: Home,
    folder: Path,
    views: Sequence[str] = VIEWS,
    size: tuple[int, int] = SIZE,
    task: int | None = None,
) -> list[Path]:
    """Write views as ``FOLDER/NAME.svg``, ``size`` columns and rows large. ``task`` is by default the first of the
    queue."""
    return asyncio.run(_save(home, folder, views, size, task))


async def _save(home: Home, folder: Path, views: Sequence[str], size: tuple[int, int], task: int | None) -> list[Path]:
    app = MarlaasApp(home, demo=home.root.name.endswith("-demo"), interval=3600)
    written = []
    async with app.run_test(size=size) as pilot:
        await _read(app, pilot)
        for view in views:
            app.selected = task or next((row.id for row in app.snapshot.ordered), None)
            app.action_open_view(view)
            await _read(app, pilot)
            path = folder / f"{view}.svg"
            path.write_text(app.export_screenshot(title=app.title), encoding="utf-8")
            written.append(path)
    return written


async def _read(app: MarlaasApp, pilot: Pilot[None]) -> None:
    app.poll()
    for _ in range(3):
        await app.workers.wait_for_complete()
        await pilot.pause()
