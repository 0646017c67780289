"""One process of a plugin version: how it is started and confined, and the protocol on its socket, with validation."""
