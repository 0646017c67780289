"""How this machine becomes a node, and ceases to be one: the way to the head, on which conditions, and its Ray."""
