"""Worker processes: the same plain classes as local children, knowing nothing of where they run."""
