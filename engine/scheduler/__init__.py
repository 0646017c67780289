"""The queue's life: which task runs, which waits and why, what commands do, what is tried again.

It starts and ends runs (``run``) on the workers that the fleet has. Its decision is a pure function of the queue.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
