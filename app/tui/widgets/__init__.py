"""The screens' widgets, one per file; they take rows and know no store."""
