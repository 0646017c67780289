"""Files of adapters: state files with their checksum, exports for PEFT and llama.cpp, retention, leftover files.

A state file holds the LoRA matrices and the optimizer's moments of one version of one policy.
"""
