"""The terminal application: screens, widgets, and their content."""
