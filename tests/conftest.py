"""The same for every test, wherever and however the tests are started.

Every property test draws the same examples everywhere, and takes the time that it needs. Ctrl-C ends what a test starts
also where the tests run in the background of a shell, which has them ignore it. What was loaded to collect the tests
stays to the end, so the garbage collector need not look through it again and again.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Generator

import hypothesis
import pytest

from marlaas.engine.devices.limits import sum_rows_alike

from .examples import examples
from .kernels import each_library, main_library

__all__ = ["each_library", "main_library"]

hypothesis.settings.register_profile(
    "repeatable", max_examples=examples(), deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("repeatable")
sum_rows_alike()  # before a test that multiplies without ``kernels``

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

YOUNG = 50_000
"""Objects after which the garbage collector looks at the youngest: a torch or a Textual makes that many in a moment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``make test`` begins with the files that name the mark: it must stand in each that has it."""
    for path in {item.path for item in items if item.get_closest_marker("processes")}:
        if "mark.processes" not in path.read_text(encoding="utf-8"):
            raise pytest.UsageError(f"{path}: write pytest.mark.processes in the file itself: it is read there.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes millions of objects, of which none goes before the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG, 20, 50)
        gc.enable()


def pytest_collection_finish() -> None:
    if "marlaas.engine.store.database" in sys.modules:  # some test may need a database
        from .kept import keep_empty_database

        keep_empty_database()


def pytest_unconfigure() -> None:
    """llama_cpp opens two files when it is imported and closes neither: the interpreter would complain at its end."""
    if utils := sys.modules.get("llama_cpp._utils"):
        utils.outnull_file.close()
        utils.errnull_file.close()
