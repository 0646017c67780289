"""Makes the tiny base model that marlaas ships: data, tokenizer, training. Scores and card are written by hand."""
