"""A base of half a billion parameters, on a processor and on a card, beside what the machine can do."""
