"""The files of plugins: contents, hints of changes, and kept versions."""
