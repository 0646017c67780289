"""The database file itself: its schema and migrations, connections that write, copies before a change, and backups."""

from ...door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
