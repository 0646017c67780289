"""The folder of one home: its paths, its settings, its disk space, and whether it may be used where it is.

Names of files in the database are relative to it, so that a home can be moved.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
