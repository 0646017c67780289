"""``serve``: the application in a browser of this machine, or of another one through an SSH tunnel."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from .. import output
from .verbs import Verbs, add_verb, home_of

NEEDS = "textual-serve>=1.1,<2"


def register(verbs: Verbs) -> None:
    """Add the verb."""
    serve = add_verb(
        verbs,
        "serve",
        run,
        "show the application in a browser, read-only; the address works once",
        epilog="Only this machine can reach it. From another one: ssh -L 8000:127.0.0.1:8000 HOST, then the address.",
    )
    serve.add_argument("--port", type=port, default=8000, metavar="N", help="default: 8000; 0: a free one")
    serve.add_argument("--control", action="store_true", help="also pause, cancel, submit: all but files and editors")


def port(text: str) -> int:
    """An argument that is a port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises ``ConfigError`` where the extra is not installed or the port is taken."""
    from importlib.util import find_spec

    from marlaas.engine.errors import ConfigError

    home = home_of(args)
    if find_spec("textual_serve") is None:
        raise ConfigError("`marlaas serve` needs textual-serve.", f'`pip install "{NEEDS}"` installs it.')
    import asyncio

    from ..web.gate import Gate
    from ..web.server import serve

    for editor in ("EDITOR", "VISUAL"):
        os.environ.pop(editor, None)  # nobody in a browser can use an editor
    command = shlex.join(served(str(home.root), args.control))

    def ready(address: str) -> None:
        output.talk(
            "Tasks can be changed from there." if args.control else "Read-only; with --control tasks can be changed."
        )
        output.talk("The first browser that opens this address is let in, and no other. Ctrl-C ends it.")
        output.result(address)

    try:
        asyncio.run(serve(command, args.port, Gate(), ready))
    except OSError as error:
        raise ConfigError(
            f"Port {args.port} is not free: {error.strerror or error}.", "Choose another one with --port, 0 for any."
        ) from error
    return output.OK


def served(home: str, control: bool) -> list[str]:
    """The command line that runs the application for one page."""
    words = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", home, "--web"]
    return words if control else [*words, "--readonly"]
