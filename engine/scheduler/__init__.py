"""The queue: which task runs, which waits and why, what commands do, what is tried again.

It starts and ends runs (``run``) on the workers that the fleet has. The decision is a pure function of the queue.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
