"""What views ask of the store: frozen questions that read their own answers, and the rows of these answers."""
