"""From a task file to the queue: dependencies, the versions that training begins from, estimates, refusals.

The application calls this before it writes a task into the store, and the scheduler asks it which state may follow
which. It reads the store, bases and adapters; it starts nothing.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
