"""What holds for all views: the first frame, their order, looks, preferences, the terminal."""
