"""Widgets of the view of rollouts: lists of steps, groups and conversations, and the pane for one conversation."""
