"""The panes of the view of one task."""
