"""A file in the person's own editor, which gets the whole terminal meanwhile.

A path flows in; whether an editor was there and the person has left it flows out. What goes wrong is said in a notice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from marlaas.engine.errors import ConfigError

from ..form.editing import edit, editor

if TYPE_CHECKING:
    from ..app import MarlaasApp


def opened(app: MarlaasApp, path: Path) -> bool:
    """Wait until the person leaves the editor; False, in silence, where none is set or there is no terminal."""
    try:
        editor()
    except ConfigError:
        return False  # none is set, which is no mistake
    try:
        with app.suspend():
            edit(path)
    except SuspendNotSupported:
        return False
    except ConfigError as error:
        app.say(str(error), bad=True)
        return False
    return True
