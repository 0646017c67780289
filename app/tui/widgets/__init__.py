"""The widgets of the screens, one per file; they take rows and know no store."""
