"""What holds the views together: the poll that feeds them, acts on the way to the engine, keys, looks and places."""
