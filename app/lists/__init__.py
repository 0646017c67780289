"""Rows of lists: filters and order, columns, folding lines, listings that are read by pages. Pure."""
