"""Reads of the store, a subject a file: rows come back as frozen dataclasses. Standard library only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
