"""The gateway: a process that speaks OpenAI's and Anthropic's interfaces over HTTP, and asks the engine for answers."""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
