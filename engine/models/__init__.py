"""The base model: its folder, its fingerprint, its tensors, its chat template, and the memory that it needs.

``chat`` renders conversations with untrusted chat templates, within bounds; ``gguf`` writes and reads llama.cpp's file
format. Names are imported when they are first needed, so that torch is loaded only where it is used.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
