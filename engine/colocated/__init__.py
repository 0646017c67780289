"""One process that samples and trains on the same device: over one copy of the base, or taking turns with two."""
