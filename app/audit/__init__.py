"""The independent checker of a home: proves from the database and the files alone that nothing was lost or doubled.

It shares no code with what it checks: not with the engine, not with the rest of the application. ``record`` reads the
database, ``history`` proves what needs no model, ``updates`` makes every optimizer step again with transformers, PEFT
and torch's own AdamW, over formulas of its own. ``marlaas home check`` and the kill harness ask it.
"""
