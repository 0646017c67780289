"""Worker processes: the same plain classes as local children, knowing nothing of where they run.

``handle`` is the engine's side, ``host`` the child's, ``wire`` what travels between them, ``arrays`` how its arrays do.
"""
