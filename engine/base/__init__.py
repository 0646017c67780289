"""Base models: what a folder holds, its weights as numpy arrays, and our own GGUF files of base and adapters."""
