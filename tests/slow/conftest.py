"""The same lab as in the end-to-end tests."""

from tests.end_to_end.conftest import lab, shared_lab

__all__ = ["lab", "shared_lab"]
