"""Which libraries are installed, which cards they reach, and why one cannot be used."""
