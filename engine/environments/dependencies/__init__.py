"""Libraries of plugins: declaration, a person's consent, and a virtual environment per set."""
