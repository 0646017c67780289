"""The machine's cards, cores, memory and libraries, and the part that marlaas may use.

What may hang or crash runs in a child process.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
