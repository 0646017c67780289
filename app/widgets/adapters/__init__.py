"""Widgets of the view of adapters and of the chat pane."""
