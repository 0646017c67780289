"""The screens' widgets by subject: bars, charts, conversations, tables."""
