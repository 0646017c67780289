"""``python -m tools.docs``, or ``make docs``: the site in ``build/docs``.

The pages of ``docs`` and the program's own code flow in: what a task file may say, settings, verbs, the environment API
and metrics are written from the code, into ``docs/reference``. A folder of plain HTML flows out. Nothing is fetched.
"""
