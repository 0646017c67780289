"""Widgets of the view of the engine: a pane of lines for each question about the machine."""
