"""Which files there are, and who takes which."""

from __future__ import annotations

from tools.suite.__main__ import ROOT
from tools.suite.order import Queue, in_order


def test_files_that_start_processes_come_first() -> None:
    found = in_order(ROOT)
    assert found[0].startswith("tests/end_to_end/") and len(found) == len({*found})
    assert found.index("tests/test_examples.py") < found.index("tests/test_layout.py")
    assert not [file for file in found if file.startswith(("tests/slow/", "tests/libraries/"))]


def test_those_that_are_named_or_lie_in_a_named_folder() -> None:
    found = in_order(ROOT, ["tests/tools/suite", "tests/test_layout.py"])
    assert {*found} == {"tests/tools/suite/test_main.py", "tests/tools/suite/test_order.py", "tests/test_layout.py"}


def test_each_file_is_taken_once_from_either_end() -> None:
    queue = Queue(["a", "b", "c"])
    assert [queue.take(True), queue.take(False), len(queue), queue.take(False), queue.take(True)] == [
        *("a", "c", 1, "b", None)
    ]
    queue = Queue(["a"])
    queue.clear()
    assert queue.take(True) is None
