"""What views ask of the store: frozen questions that read themselves, with the rows that answer them."""
