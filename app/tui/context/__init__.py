"""What surrounds a view: the feed that polls the home and sends commands, notices, the person's editor."""
