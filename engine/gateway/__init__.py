"""The API: an HTTP process and the engine's side."""
