"""The files of plugins: what lies in the folders, when it may have changed, and what is kept of it by version."""
