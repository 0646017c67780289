"""Environments: a process for each plugin version, in which episodes run, ask the model, and are paid.

``EnvironmentService`` has all plugins of a home and reloads them as files change. What comes out of a process is
validated: the code in it may be broken or hostile.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
