"""Pictures of the real program on a real home, for documents: ``python -m marlaas.app.screenshot HOME FILE.svg``.

Runs the application without a terminal, waits until it has read the store, and writes what it shows as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from marlaas.engine.paths import Home

from .app import MarlaasApp

SIZE = (120, 36)


def save_screenshot(
    home: Home, path: Path, screen: str = "queue", size: tuple[int, int] = SIZE, task: int | None = None
) -> None:
    """Write one screen, "queue" or "task", as SVG. ``task`` is by default the first of the queue."""
    asyncio.run(_save(home, path, screen, size, task))


async def _save(home: Home, path: Path, screen: str, size: tuple[int, int], task: int | None) -> None:
    app = MarlaasApp(home, demo=home.root.name.endswith("-demo"), interval=3600)
    async with app.run_test(size=size) as pilot:
        await _read(app)
        await pilot.pause()
        if screen == "task":
            chosen = task if task is not None else next((row.id for row in app.snapshot.ordered), None)
            if chosen is not None:
                app.open_task(chosen)
                await _read(app)
                await pilot.pause()
        path.write_text(app.export_screenshot(title=app.title), encoding="utf-8")


async def _read(app: MarlaasApp) -> None:
    """Read the store once, from beginning to end."""
    app.poll()
    await app.workers.wait_for_complete()


def main() -> int:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m marlaas.app.screenshot", description=save_screenshot.__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--screen", choices=("queue", "task"), default="queue")
    parser.add_argument("--task", type=int)
    parser.add_argument("--size", type=int, nargs=2, default=SIZE, metavar=("COLUMNS", "ROWS"))
    args = parser.parse_args()
    save_screenshot(Home(args.home.absolute()), args.file, args.screen, tuple(args.size), args.task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
