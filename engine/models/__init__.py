"""The base model: folder, fingerprint, tensors, chat template, GGUF files, and memory."""
