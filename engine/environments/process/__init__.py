"""One process of a plugin version: its start, its confinement, and the validated protocol on its socket."""
