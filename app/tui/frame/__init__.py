"""The views' frame: poll, commands, keys, looks."""
