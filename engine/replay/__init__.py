"""Replay: episodes of the past are played again with what was replied then, to see which rewards would change."""
