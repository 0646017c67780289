"""The API of a home: whether it is open, its keys, and what was asked of it."""
