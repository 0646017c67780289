"""What the base is taught, one skill or family of skills per file."""
