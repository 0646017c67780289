"""The base model: its folder, its fingerprint, its tensors, its chat template, and the memory that it needs.

``chat`` renders conversations by templates from anywhere, bounded; ``gguf`` writes and reads llama.cpp's file format.
What imports torch says so at its top: a name is loaded when it is first asked for.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
