"""Makes the tiny base model that marlaas ships: data, tokenizer, training, evaluation, model card."""
