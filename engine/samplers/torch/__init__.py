"""The sampler on torch: rows of all versions in one pass."""
