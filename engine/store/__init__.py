"""The SQLite database of a home.

The application writes only submissions and commands. ``Reader`` and the queries return frozen dataclasses. All SQL is
in this package.
"""
