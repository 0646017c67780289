"""Widgets of the form: a line for each key, tables that fold, and what the tasks will take."""
