"""The terminal application: how soon it is there, how soon it answers, what it takes."""
