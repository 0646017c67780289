"""Says at which lines a plugin keeps the event loop of its process busy: a thread looks at the loop's stack.

While the loop runs one episode's code, no other episode of the process moves. Used only while a check asks for it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import FrameType

from .blame import Blame
from .channel import Record

INTERVAL = 0.004
"""Seconds between two looks: a block of 50 ms is seen a dozen times."""
MOST_PLACES = 20


Place = tuple[str, int, int]
"""See ``Blame.place``."""


class StackSampler:
    """Looks at the stack of one thread from ``start`` to ``stop``."""

    def __init__(self, blame: Blame, thread: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``thread``: the identifier of the thread that runs the loop; None is the one that calls."""
        self._blame = blame
        self._thread = threading.get_ident() if thread is None else thread
        self._clock = clock
        self._seconds: defaultdict[Place, float] = defaultdict(float)
        self._ended = threading.Event()
        self._began = self._seen = clock()
        self._computed = time.process_time()
        self._looking = threading.Thread(target=self._look, name="stacks", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._looking.start()

    def stop(self) -> Record:
        """End, and say what was seen: seconds in all, processor seconds of the process, and seconds by function.

        A function has the line of it on which most of its time was spent.
        """
        self._ended.set()
        self._looking.join()
        functions: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        for (file, function, line), seconds in self._seconds.items():
            functions[file, function].append((seconds, line))
        summed = [
            (file, max(lines)[1], math.fsum(spent for spent, _ in lines)) for (file, _), lines in functions.items()
        ]
        places = sorted(summed, key=lambda found: -found[2])[:MOST_PLACES]
        return {
            "seconds": self._clock() - self._began,
            "computed": time.process_time() - self._computed,
            "places": [{"file": file, "line": line, "seconds": seconds} for file, line, seconds in places],
        }

    def look(self, frame: FrameType | None) -> None:
        """Count the time since the last look for the place where the plugin's code is now, if it runs."""
        now = self._clock()
        passed, self._seen = now - self._seen, now
        place = self._blame.place(frame)
        if place is not None:
            self._seconds[place] += passed

    def _look(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.look(sys._current_frames().get(self._thread))
