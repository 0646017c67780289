"""The author API: what an environment file imports. Standard library only."""
