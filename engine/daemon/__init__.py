"""The engine's process: one for a home, with its lock; starts everything else, and handles signals.

``main`` is the program; the app starts, asks and stops it by ``control``.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
