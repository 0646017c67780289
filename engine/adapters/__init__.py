"""Files of adapters: state files with their checksum, exports for PEFT and llama.cpp, retention, leftover files.

A state file holds the LoRA matrices and the optimizer's moments of one version of one policy.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
