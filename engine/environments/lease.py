"""A hold on one version of one plugin: all episodes of a group are played under the same one."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from .serving import Serving
from .wire import Described


@dataclass(eq=False)
class Lease:
    """Made by ``EnvironmentService.bind``. Release it when the group is over; a ``with`` block does."""

    environment: str
    """"plugin/environment"."""
    declared: Described
    serving: Serving
    released: bool = False

    @property
    def environment_version(self) -> str:
        """What the group's episodes are recorded with."""
        return self.serving.version

    def release(self) -> None:
        """Let the version go; asking twice is harmless."""
        if not self.released:
            self.released = True
            self.serving.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()
