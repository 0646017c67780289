"""Versions of tenants, and the base, for clients that have a key: names, loading on demand, sampling, limits."""

from ...door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
