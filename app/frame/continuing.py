"""The terminal of an application that goes on where the first frame stands."""

from __future__ import annotations

from functools import partial

from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.message import Message

from .first_frame import ENTER, FirstFrame


def continuing(frame: FirstFrame) -> type[LinuxDriver]:
    """A driver that does not wipe the first frame when it begins, and knows how the terminal was before that."""

    class Continuing(LinuxDriver):
        """Textual's driver for terminals, begun on the alternate screen."""

        def write(self, data: str) -> None:
            """Go to the alternate screen each time but the first."""
            if data == ENTER and not frame.taken:
                frame.taken = True
            else:
                super().write(data)

        def process_message(self, message: Message) -> None:
            """Keep keys until there is something that they can act on."""
            pass_on = partial(super().process_message, message)
            frame.then(pass_on) if isinstance(message, Key) else pass_on()

        def start_application_mode(self) -> None:
            """As Textual does; what programs are given the terminal meanwhile, and who has it afterwards, get it as it
            was."""
            super().start_application_mode()  # type: ignore[no-untyped-call]
            self.attrs_before = frame.attributes

    return Continuing
