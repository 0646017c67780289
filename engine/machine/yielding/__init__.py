"""When the engine leaves the machine to others, and returns."""
