"""Reads of the store, a subject a file: rows come back as frozen dataclasses. Standard library only."""

from ...door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
