"""Stored episodes played again under another version of their environment, to see which rewards would change."""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
