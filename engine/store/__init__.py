"""The SQLite database of a home: tasks, versions, experience, scores, events and measurements.

``Store`` is the engine's. The application writes only submissions and commands. ``Reader`` and the queries return
frozen dataclasses. All SQL is in this package.
"""
