"""Charts as characters: numbers in, rows of text and its kind out. Pure; knows neither Textual nor the store."""
