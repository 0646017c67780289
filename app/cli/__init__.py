"""The command line: one verb or family of verbs per file. Imports neither Textual nor torch nor numpy."""
