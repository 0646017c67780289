"""Which version of marlaas this program is."""

from __future__ import annotations


def version() -> str:
    """As the package was installed, "0.1.0"."""
    from importlib.metadata import version as installed

    return installed("marlaas")
