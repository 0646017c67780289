"""Every property test draws the same examples everywhere, and takes the time that it needs."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")
