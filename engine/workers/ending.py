"""How a worker ended, in one sentence that a person can act on."""

from __future__ import annotations

import signal
from pathlib import Path

from ..devices import STATUS

TAIL = 4096

HINTS = {
    signal.SIGILL: "A library was built for another processor; install it again on this machine (`make install`).",
    signal.SIGKILL: "Something killed it, most often the kernel for want of memory.",
}


def last_line(log_path: Path, start: int = 0) -> str:
    """The last line with text after byte ``start`` of the log; else empty."""
    try:
        with open(log_path, "rb") as log:
            size = log.seek(0, 2)
            log.seek(max(start, size - TAIL))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def sentence(name: str, code: int | None, starting: bool, line: str) -> tuple[str, str]:
    """What happened, and a hint; ``code`` is the exit status, negative for a signal, None if not known."""
    what = f"Worker {name} " + ("could not start" if starting else "ended")
    if code is None:
        return (f"{what}: {line}" if line else what).rstrip(".") + ".", ""
    if code < 0:
        what += f" by signal {signal_name(-code)}"
    elif code == STATUS and not starting:
        what = f"Worker {name} ran out of memory"
    elif code > 0:
        what += f" with exit status {code}"
    if line:
        what += f": {line}"
    return what.rstrip(".") + ".", HINTS.get(signal.Signals(-code), "") if code < 0 and _known(-code) else ""


def _known(number: int) -> bool:
    return number in {entry.value for entry in signal.Signals}


def signal_name(number: int) -> str:
    """A signal's name, or its number if this platform has no name for it."""
    if not _known(number):
        return str(number)
    return "SIGILL (illegal instruction)" if number == signal.SIGILL else signal.Signals(number).name
