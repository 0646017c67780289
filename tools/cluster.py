"""An environment of its own for tests over several machines: `.cluster`, which is `.venv` and Ray. Does nothing twice.

Run by ``make test-slow-cluster``; standard library only. It sees the packages of ``.venv`` by a path file, so that only
Ray and what it needs are installed, from ``constraints/hashes/cluster.txt``.
"""

from __future__ import annotations

import hashlib
import sys
import time

from .steps import HASHES, LOG, ROOT, StepFailed, checked, fail, last_complaint, minutes, pip, python_of, step

VENV = ROOT / ".cluster"
BESIDE = "beside.pth"


def main() -> int:
    """Make the environment, unless it is there."""
    if sys.platform != "linux":
        return fail("Ray joins several machines on Linux only.", "Run this on Linux, or in a container.")
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == fingerprint():
        return 0
    print(f"Into {VENV}: Ray and what it needs, 250 MB; a minute, once.", flush=True)
    started = time.monotonic()
    try:
        step("making .cluster", [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)])
        (site,) = VENV.glob("lib/python*/site-packages")
        own = [each for each in sys.path if each.endswith("site-packages")]
        (site / BESIDE).write_text("".join(f"import site; site.addsitedir({each!r})\n" for each in own))
        step("installing Ray", pip(*checked("cluster"), into=VENV))
        step("looking for Ray", [str(python_of(VENV)), "-c", "import ray, torch, pytest"])
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {LOG}.")
    stamp.write_text(fingerprint(), encoding="utf-8")
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def fingerprint() -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    digest.update((HASHES / "cluster.txt").read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
