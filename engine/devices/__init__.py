"""Cards, cores, memory, libraries. What may hang or crash runs in a child process."""
