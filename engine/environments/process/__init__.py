"""One process of a plugin version: how it is started, what is kept from it, what is said to it and believed of it."""
