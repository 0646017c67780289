"""Widgets of the view of environments."""
