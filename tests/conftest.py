"""Every property test draws the same examples everywhere, and takes the time that it needs."""

from __future__ import annotations

import os

import hypothesis

if "PYTEST_XDIST_WORKER" in os.environ:  # a test process per core: threads of one spin on the cores of the others
    os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")
