"""Environments in words: what is known of them, what the checks found, and an episode as it is played. Pure."""
