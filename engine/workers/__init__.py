"""Processes of our own: started with a socket, called like objects, watched, and ended.

A worker is a plain class with async methods that does not know where it runs. Frames are pickled dataclasses whose
arrays travel as bytes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
