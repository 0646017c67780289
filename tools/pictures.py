"""The pictures in docs/, taken from a real demo while it runs: ``python -m tools.pictures``, or ``make pictures``.

SVG files of a demo that is started in its own home and removed afterwards. With ``--real BASE`` those of the queue
and of a task are taken from three tasks on a real base, such as ``.bench/smollm2`` of the benchmarks; half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
DOCS = ROOT / "docs"
PATIENCE = 3600.0
SHORT, TALL = (120, 30), (120, 36)
MARLAAS = (sys.executable, "-P", "-m", "marlaas.app.cli.main")


TASK = """\
tenant = "{tenant}"
name = "{name}"
environment = "real/{name}"
steps = {steps}

[eval]
every = 5
"""
TASKS = (("physics-lab", "number", 30), ("linguistics", "facts", 20), ("economics", "capital", 30))
"""Tenant, environment and steps on a real base."""


def main() -> None:
    """Take those of the demo, or those of a real base."""
    words = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__.split("\n")[0])
    words.add_argument("--real", type=Path, metavar="BASE", help="the queue and a task on this base, not the demo")
    base = words.parse_args().real
    take(base.resolve() if base else None)


def take(base: Path | None) -> None:
    """All pictures of the demo; or the queue and the second of three tasks on a base, when that has learned a while."""
    with tempfile.TemporaryDirectory(prefix="marlaas-pictures-", ignore_cleanup_errors=True) as person:
        own = {name: value for name, value in os.environ.items() if name not in ("MARLAAS_HOME", "XDG_STATE_HOME")}
        own["HOME"] = os.environ["HOME"] = person  # paths under it are shown as ~
        home = Home(Path(person) / ".local" / "state" / ("marlaas" if base else "marlaas-demo"))
        if base:
            home.create()
            home.config.write_text(f"base = {json.dumps(str(base))}\n", encoding="utf-8")
            shutil.copytree(ROOT / "benchmarks" / "plugins" / "real", home.plugins / "real")
            files = [Path(person) / f"{name}.toml" for _, name, _ in TASKS]
            for path, (tenant, name, steps) in zip(files, TASKS, strict=True):
                path.write_text(TASK.format(tenant=tenant, name=name, steps=steps), encoding="utf-8")
            subprocess.run((*MARLAAS, "submit", *map(str, files)), env=own, check=True)
        else:
            demo = subprocess.Popen((*MARLAAS, "demo"), env=own, stdout=subprocess.DEVNULL)
        try:
            until(home, *((2, 15) if base else (1, 40)))
            save_screenshots(home, DOCS, ["queue"] if base else ["queue", "engine"], SHORT)
            until(home, *((2, 15) if base else (2, 25)))
            save_screenshots(home, DOCS, ["task"] if base else ["task", "rollouts"], TALL, task=2)
        finally:
            if base:
                subprocess.run((*MARLAAS, "engine", "stop"), env=own, check=True)
            else:
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
