"""The engine's process: one for a home, which holds its lock, starts all else, and answers to signals.

``control`` is for whoever starts, stops or looks for it. ``main`` is the program.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
