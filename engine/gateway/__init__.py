"""The API: HTTP for clients and for programs of episodes, in a process (``http``) that asks the engine for answers.

The rest of this package is the engine's side: that process, who may ask, and the versions that clients are served.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
