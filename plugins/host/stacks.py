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
from .delays import delay_of

INTERVAL = 0.004
"""Seconds between two looks: a block of 50 ms is seen a dozen times."""
MOST_PLACES = 20


Place = tuple[str, int, int]
"""See ``Blame.place``."""


class StackSampler:
    """Looks at the stack of one thread from ``start`` to ``stop``."""

    def __init__(
        self,
        blame: Blame,
        thread: threading.Thread | None = None,
        clock: Callable[[], float] = time.monotonic,
        delay: Callable[[int], float] | None = None,
    ) -> None:
        """``thread``: the one that runs the loop; None is the one that calls. ``delay``: ``delay_of`` unless given."""
        self._blame = blame
        self._thread = thread or threading.current_thread()
        self._clock = clock
        self._delay = delay or delay_of
        self._delayed = self._delay(self._thread.native_id or 0)
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
        """Count the time since the last look for the place where the plugin's code is now, if it runs.

        Time in which the thread waited for a core is the machine's, and left out.
        """
        place = self._blame.place(frame)  # before the system is asked: meanwhile the thread goes on
        now, delayed = self._clock(), self._delay(self._thread.native_id or 0)
        passed = max(0.0, now - self._seen - (delayed - self._delayed))
        self._seen, self._delayed = now, delayed
        if place is not None:
            self._seconds[place] += passed

    def _look(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.look(sys._current_frames().get(self._thread.ident or 0))
