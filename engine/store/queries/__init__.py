"""Reads of the store, one subject a file: rows are frozen dataclasses. Standard library only."""

from ...door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
