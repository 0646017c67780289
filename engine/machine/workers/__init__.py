"""Worker processes: plain classes with async methods, called over a socket, watched, and ended."""
