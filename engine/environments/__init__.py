"""Stage 2, environments: a process per plugin version; episodes ask, the engine answers."""
