"""Widgets of the view of logs."""
