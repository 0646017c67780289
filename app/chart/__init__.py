"""Charts as characters: numbers in, rows of (text, kind) out. Pure; knows neither Textual nor the store."""
