"""The version of marlaas."""

from __future__ import annotations


def version() -> str:
    """The version of the installed package, "0.2.0"."""
    from importlib.metadata import version as installed

    return installed("marlaas")
