"""From a task file to the queue: who waits for whom, what training starts from, what it will take, what is refused.

The application calls this before it writes a task into the store, and the scheduler asks it which state may follow
which. It reads the store, bases and adapters; it starts nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
