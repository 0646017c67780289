"""The same for every test, wherever and however the tests are started.

Every property test draws the same examples everywhere, and takes the time that it needs. Ctrl-C ends what a test starts
also where the tests run in the background of a shell, which has them ignore it.
"""

from __future__ import annotations

import os
import signal
import threading

import hypothesis

if "PYTEST_XDIST_WORKER" in os.environ:  # a test process per core: threads of one spin on the cores of the others
    os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
