"""A view's surroundings: the application's protocol, the snapshot, the person's editor, themes."""
