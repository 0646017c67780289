"""``python -m tools.docs``, or ``make docs``: the site in ``build/docs``, a folder of plain HTML.

Besides the pages of ``docs`` it has those written from the code into ``docs/reference``: what a task file may say,
settings, verbs, the environment API and metrics. Nothing is fetched.
"""
