"""The cards, the holders of their memory, and the cards that a process sees."""
