"""The independent checker of a home: proves from the database and the files alone that nothing was lost or doubled.

It shares no code with what it checks: not with the engine, not with the rest of the application. ``record`` reads the
database, ``states`` the state files, ``history``, ``plays`` and ``rewards`` prove what needs no model, ``again`` and
``updates`` make every optimizer step again with transformers, PEFT and torch's own AdamW, over the formulas in
``losses``. ``marlaas home check`` and the kill harness ask it.
"""
