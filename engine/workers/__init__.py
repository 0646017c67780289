"""Worker processes: started with a socket, called like objects, watched, and ended.

A worker is a plain class with async methods that does not know its machine.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
