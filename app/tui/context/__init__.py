"""What a view knows of the application around it: its protocol, the snapshot, the person's editor, themes."""
