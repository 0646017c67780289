"""The engine's process: one for a home, with its lock; starts everything else, and handles signals.

``main`` is the program; the app starts, asks and stops it by ``control``.
"""
