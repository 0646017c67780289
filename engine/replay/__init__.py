"""Replay: stored episodes are played again on another environment version, to see which rewards would change."""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
