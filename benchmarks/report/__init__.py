"""What a benchmark returns and what is published of it: figures, the machine, results, pages."""
