"""List rows and their order: small queries, folding lines, pages. Pure."""
