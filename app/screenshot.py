"""Pictures of the real program on a real home: ``python -m marlaas.app.screenshot HOME FOLDER``.

Runs without a terminal, waits for the store, writes each view as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
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
    keys: Sequence[str] = (),
) -> list[Path]:
    """Write views as ``FOLDER/NAME.svg``, ``size`` columns and rows large. ``task`` is by default the first of the
    queue; ``keys`` are pressed in each view before its picture is taken."""
    return asyncio.run(_save(home, folder, views, size, task, keys))


async def _save(
    home: Home, folder: Path, views: Sequence[str], size: tuple[int, int], task: int | None, keys: Sequence[str]
) -> list[Path]:
    app = MarlaasApp(home, demo=home.root.name.endswith("-demo"), interval=3600)
    written = []
    async with app.run_test(size=size) as pilot:
        await _read(app, pilot)
        for view in views:
            app.selected = task or next((row.id for row in app.snapshot.ordered), None)
            app.action_open_view(view)
            await _read(app, pilot)
            await pilot.press(*keys)
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


def main() -> int:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m marlaas.app.screenshot", description=save_screenshots.__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--view", choices=VIEWS, action="append", help="may be given several times (default all)")
    parser.add_argument("--task", type=int)
    parser.add_argument("--press", nargs="*", default=(), metavar="KEY")
    parser.add_argument("--size", type=int, nargs=2, default=SIZE, metavar=("COLUMNS", "ROWS"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    views = args.view or VIEWS
    for path in save_screenshots(
        Home(args.home.absolute()), args.folder, views, tuple(args.size), args.task, args.press
    ):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
