"""What the machine has, and how much of it marlaas may use: cards, cores, memory, drivers, installed libraries.

What may hang or crash runs in a child process. Which worker goes where is decided in ``fleet/placement``.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
