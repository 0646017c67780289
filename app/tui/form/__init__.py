"""The form of a task without its looks: fields, what was typed into them, and what is wrong. Knows no Textual."""
