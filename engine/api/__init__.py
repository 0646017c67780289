"""The engine's side of the gateway: its process, who may ask, and the versions that are served to clients."""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
