"""Yielding: when the engine leaves the machine to others, and how its workers end and come back."""
