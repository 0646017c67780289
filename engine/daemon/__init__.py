"""The engine's process: one for a home, which holds its lock, starts all else, and answers to signals.

``control`` is for whoever starts, stops or looks for it. ``main`` is the program.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
