"""When the engine leaves the machine to others: it was yielded, it is outside its active hours, or nothing runs."""
