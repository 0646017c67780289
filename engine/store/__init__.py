"""What a home remembers: one SQLite database of tasks, versions, experience, scores, events and measurements.

``Store`` is the engine's, the only writer beside submissions and commands of the application. ``Reader`` and the other
queries are for everybody: rows come back as frozen dataclasses. SQL stands here and nowhere else.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
