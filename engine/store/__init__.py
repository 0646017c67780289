"""The SQLite database of a home: tasks, versions, experience, scores, events and measurements.

``Store`` is the engine's. Nothing else writes, except that the application inserts submissions and commands. ``Reader``
and the other queries are for everybody: rows come back as frozen dataclasses. All SQL is in this package.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
