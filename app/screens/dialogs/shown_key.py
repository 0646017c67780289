"""A new key of the API, shown this once: only its hash is kept."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from ...rollouts.document import wrapped
from ...words.format import line
from .reading import Reading


class ShownKey(Reading):
    """Shows the key; y copies it, to the clipboard alone."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", "copy the key", id="api.copy_key")]
    TALL = False

    def __init__(self, key: str, tenant: str) -> None:
        super().__init__()
        self._key, self._tenant = key, tenant

    def heading(self) -> str:
        """Whose key it is."""
        return f"a key for {line(self._tenant, 60)}"

    def text(self, width: int) -> Content:
        """The key by itself in a line, so that a mouse marks it whole, and what is to be known of it."""
        about = (
            "It is shown this once: the home keeps only its hash. Copy it now with y, or mark it with the mouse (shift"
            " held down). A program takes it as OPENAI_API_KEY or ANTHROPIC_API_KEY. x in view 8 revokes it."
        )
        told = Content("\n").join([Content(about[start:stop]) for start, stop in wrapped(about, width)])
        return Content("\n").join([Content.styled(self._key, "bold $text-success"), Content(""), told])

    def action_copy(self) -> None:
        """Copy the key; no file gets it, as other copies do."""
        self.app.copy_to_clipboard(self._key)
        self.notify("The key is copied to the clipboard, if your terminal lets programs do that.", markup=False)
