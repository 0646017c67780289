"""The pictures in docs/, taken from a real demo while it runs: ``python -m tools.pictures``, or ``make pictures``.

SVG files of a demo that is started in its own home and removed afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from marlaas.app.screenshot import save_screenshots
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.schema import is_current

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 3600.0
SHORT, TALL = (120, 30), (120, 36)


def main() -> None:
    """Take all of them."""
    with tempfile.TemporaryDirectory(prefix="marlaas-pictures-", ignore_cleanup_errors=True) as person:
        variables = {
            name: value for name, value in os.environ.items() if name not in ("MARLAAS_HOME", "XDG_STATE_HOME")
        }
        variables["HOME"] = os.environ["HOME"] = person  # paths under it are shown as ~
        home = Home(Path(person) / ".local" / "state" / "marlaas-demo")
        demo = subprocess.Popen(
            (sys.executable, "-P", "-m", "marlaas.app.cli.main", "demo"), env=variables, stdout=subprocess.DEVNULL
        )
        try:
            until(home, 1, 40)
            save_screenshots(home, ROOT / "docs", ["queue", "engine"], SHORT)
            until(home, 2, 25)
            save_screenshots(home, ROOT / "docs", ["task", "rollouts"], TALL, task=2)
        finally:
            demo.terminate()
            demo.wait()


def until(home: Home, task: int, step: int) -> None:
    """Wait until a task has made that many steps. Raises ``RuntimeError`` if it does not."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if is_current(home.database):
            with Reader(home.database) as reader:
                if any(row.id == task and row.step >= step for row in reader.tasks()):
                    return
        time.sleep(0.5)
    raise RuntimeError(f"Task {task} did not come to step {step}.")


if __name__ == "__main__":
    main()
