"""The pictures in docs/, taken from a real demo while it runs: ``python -m tools.pictures``, or ``make pictures``.

SVG files of a demo that is started in a home of its own and removed afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from marlaas.app.screenshot import save_screenshots
from marlaas.engine.home import Home

from .task_rows import tasks_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PATIENCE = 600.0
SHORT, TALL = (120, 30), (120, 36)
MARLAAS = (sys.executable, "-P", "-m", "marlaas.app.cli.main")


def main() -> int:
    """Take them all."""
    with tempfile.TemporaryDirectory(prefix="marlaas-pictures-", ignore_cleanup_errors=True) as person:
        own = {name: value for name, value in os.environ.items() if name not in ("MARLAAS_HOME", "XDG_STATE_HOME")}
        os.environ["HOME"] = person  # paths under it are shown as ~
        home = Home(Path(person) / ".local" / "state" / "marlaas-demo")
        demo = subprocess.Popen((*MARLAAS, "demo"), env=own | {"HOME": person}, stdout=subprocess.DEVNULL)
        try:
            until(home, task=1, step=40)
            save_screenshots(home, DOCS, ["queue", "engine"], SHORT)
            until(home, task=2, step=25)
            save_screenshots(home, DOCS, ["task", "rollouts"], TALL, task=2)
        finally:
            demo.terminate()
            demo.wait()
    return 0


def until(home: Home, task: int, step: int) -> None:
    """Wait until a task of the demo has made so many steps. Raises ``RuntimeError`` if it does not."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if any(row.id == task and row.step >= step for row in tasks_of(home)):
            return
        time.sleep(0.5)
    raise RuntimeError(f"Task {task} of the demo did not come to step {step}.")


if __name__ == "__main__":
    sys.exit(main())
