"""One process of a plugin version: start, confinement, and validated protocol."""
