"""The whole suite, file by file, by several processes: ``python -m tools.suite``.

``order`` says which files come when, ``__main__`` starts the processes and hands out the files, and ``worker`` is the
plugin with which pytest runs one after another of them.
"""
