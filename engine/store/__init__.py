"""The store: one SQLite database per home, and the only SQL in the project.

Importing this package imports nothing heavy: the app reads through ``reader`` and writes through ``submissions``, both
on the standard library alone. The engine, the only other writer, uses ``Store`` from ``store.store``.
"""
