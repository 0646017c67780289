"""The independent checker of a home: proves from the database and the files alone that nothing was lost or doubled.

It shares no code with what it checks. ``record`` reads the database, ``states`` the state files, ``history`` and
``rewards`` prove what needs no model, ``updates`` makes every optimizer step again with transformers, PEFT and torch's
own AdamW, over the formulas in ``losses``.
"""
