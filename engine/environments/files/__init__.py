"""The files of plugins: what is in the folders, when it may have changed, and what is kept by version."""
