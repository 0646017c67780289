"""Files of adapters: state files with their checksum, exports for PEFT and llama.cpp, retention, leftover files.

A state file holds the LoRA matrices and the optimizer's moments of one version of one policy. It is read whole or not
at all, and an error says whether it is damaged, missing, or only out of reach.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
