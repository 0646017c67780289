"""Reads of what was played: groups, episodes, and the tokens of a conversation. Standard library only."""

from ....door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
