"""The base model: its folder, its fingerprint, its tensors, its chat template, and the memory that it needs.

``templates`` renders conversations with untrusted chat templates, within bounds; ``gguf`` writes and reads
llama.cpp's file format.
"""
