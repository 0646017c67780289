"""Dependencies, start versions, estimates and refusals.

Reads the store, bases and adapters; starts nothing.
"""
