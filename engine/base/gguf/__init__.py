"""GGUF, the file format of llama.cpp: the base and adapters written in it, and files that users bring."""
