"""Stored episodes played again under another version of their environment, to see which rewards would change."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
