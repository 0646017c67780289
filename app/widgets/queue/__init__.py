"""Widgets of the view of the queue."""
