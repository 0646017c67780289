"""What screens are made of, one widget per file; they take rows and know no store."""
