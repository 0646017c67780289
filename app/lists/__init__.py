"""Which rows a list shows and in which order: small queries, folding lines, pages. Pure."""
