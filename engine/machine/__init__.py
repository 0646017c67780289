"""The machine's workers: placement, memory, supervision, sharing."""
