"""How this machine joins and leaves a cluster: the way to the head, the conditions, and its Ray."""
