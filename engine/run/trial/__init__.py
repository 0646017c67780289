"""One step of the default task with real workers, to see what a machine can do with a base."""
