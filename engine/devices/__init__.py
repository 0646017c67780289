"""The machine's cards, cores, memory, drivers and libraries, and the part that marlaas may use.

What may hang or crash runs in a child process. ``fleet/placement`` places the workers.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
