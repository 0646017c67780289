"""The oracle: recomputes a home's history and updates from its database and files, with code of its own.

It shares no code with the engine and the application. ``record`` reads the database, ``history`` checks what needs no
model, ``updates`` makes every optimizer step again with transformers, PEFT and torch's AdamW.
"""
