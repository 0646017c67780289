"""Which lines of a plugin keep a thread busy, by looks at its stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.stacks import StackSampler, delay_of

PLUGIN = """
def first(look):
    look()

def second(look, again):
    look()
    again()
    again()
"""


def plugin(folder: Path) -> Any:
    path = folder / "game.py"
    path.write_text(PLUGIN)
    module = ModuleType("game")
    exec(compile(PLUGIN, str(path), "exec"), vars(module))
    return module


def test_time_goes_to_the_line_that_runs(tmp_path: Path) -> None:
    game, now = plugin(tmp_path), [0.0]
    delayed = [5.0]
    sampler = StackSampler(Blame(tmp_path), clock=lambda: now[0], delay=lambda thread: delayed[0])

    def looked(after: float) -> Callable[[], None]:
        def look() -> None:
            now[0] += after
            sampler.look(sys._getframe(1))

        return look

    looked(1.0)()  # no code of the plugin runs
    game.first(looked(0.25))
    game.second(looked(0.125), looked(0.5))
    delayed[0] += 3.0
    game.first(looked(3.5))  # most of which it waited for a core
    sampler.start()
    said = sampler.stop()
    assert said["seconds"] == now[0] == 5.875 and said["computed"] >= 0
    assert said["places"] == [
        {"file": "game.py", "line": 8, "seconds": 1.125},
        {"file": "game.py", "line": 3, "seconds": 0.75},
    ]


def test_a_thread_that_computes_is_seen_from_beside(tmp_path: Path) -> None:
    game = plugin(tmp_path)
    seen, done = threading.Event(), threading.Event()

    class Seeing(StackSampler):
        def look(self, frame: FrameType | None) -> None:
            super().look(frame)
            if self._seconds:
                seen.set()

    thread = threading.Thread(target=game.first, args=(done.wait,))
    thread.start()
    sampler = Seeing(Blame(tmp_path), thread)
    sampler.start()
    assert seen.wait(50)
    done.set()
    thread.join()
    (place,) = sampler.stop()["places"]
    assert (place["file"], place["line"]) == ("game.py", 3)


def test_what_only_an_adapter_runs_has_no_line(tmp_path: Path) -> None:
    from marlaas.plugins.adapters import answers

    found: list[object] = []

    class Text(str):
        def rfind(self, *given: Any) -> int:
            found.append(Blame(tmp_path).place(sys._getframe()))
            return -1

    answers.whole(Text("x"))
    assert found == [("", 0, 0)] and Blame(tmp_path).place(sys._getframe()) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a thread waited for a core")
def test_how_long_a_thread_waited_for_a_core_never_falls() -> None:
    before = delay_of(threading.get_native_id())
    assert 0 <= before <= delay_of(threading.get_native_id())
    assert delay_of(1 << 40) == 0.0
