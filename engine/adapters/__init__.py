"""Adapter versions: the state file, and the formats in which users take an adapter away."""
