"""The terminal application's views, one per file, and the dialogs."""
