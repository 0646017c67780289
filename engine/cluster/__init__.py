"""Several machines, joined by Ray: nodes, what they run, and how this machine becomes one of them.

A home without ``[cluster]`` never loads this package. Ray itself is imported by the processes that speak with it alone.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
