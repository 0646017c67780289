"""A task's form without its looks: fields, typed texts, problems. Knows no Textual."""
