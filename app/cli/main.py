"""Parses, runs one verb, returns an exit code.

No traceback reaches a user: known errors are a sentence and a hint, unknown ones a sentence and the traceback's file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from marlaas.engine.errors import MarlaasError

from .. import output
from . import terminal
from .parser import CommandParser, add_home, place_of

VERBS = {
    "demo": ("demo",),
    "queue": ("submit", "eval", "pause", "resume", "retry", "cancel", "extend", "tenants"),
    "tasks": ("list", "show", "watch", "compare", "wait"),
    "results": ("stats", "metrics", "matrix", "rollouts", "report", "logs"),
    "env": ("env",),
    "base": ("base",),
    "adapters": ("adapters",),
    "chat": ("chat",),
    "api": ("api", "serve"),
    "engine": ("engine", "cluster"),
    "home": ("home", "doctor", "clean"),
    "simulate": ("simulate",),
    "help": ("explain", "keys", "completion"),
}
"""Verbs by module; a command line loads only its verb's module."""
_GROUPS = """\
begin     demo  submit  eval  env  base
watch     list  show  watch  wait  compare  logs  report  explain
steer     pause  resume  retry  cancel  extend  tenants
results   stats  metrics  matrix  rollouts  adapters  chat  api  serve
machine   engine  cluster  home  doctor  clean  simulate  keys  completion"""
WITH_A_VALUE = ("--home", "--theme")
WITHOUT = ("--plain", "--readonly", "--ascii", "--web", "--version")


def needed(words: Sequence[str]) -> tuple[str, ...]:
    """Modules for a command line: its verb's; none for the application; all if unknown."""
    left = iter(words)
    for word in left:
        if word in WITH_A_VALUE:
            next(left, "")
        elif not word.startswith("-"):
            return tuple(module for module, verbs in VERBS.items() if word in verbs) or tuple(VERBS)
        elif word in ("-h", "--help"):
            break  # it lists the verbs from the table above
        elif word.partition("=")[0] not in (*WITH_A_VALUE, *WITHOUT):
            return tuple(VERBS)  # an abbreviation, or a mistake
    return ()


def build_parser(modules: Iterable[str] = tuple(VERBS)) -> argparse.ArgumentParser:
    """The parser with the verbs of these modules."""
    parser = CommandParser(
        prog="marlaas",
        usage="marlaas [OPTION ...] [VERB ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune many LoRA adapters by reinforcement learning, at once, on the machine\n"
        "you already have. Without a verb: the terminal application.",
        epilog="Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 no engine, 130 interrupted.",
    )
    add_home(parser)
    terminal.add_options(parser)
    parser.add_argument("--version", action="store_true", help="print the version and end")
    parser.set_defaults(run=_open)
    verbs = parser.add_subparsers(
        title="verbs",
        prog="marlaas",
        metavar="VERB",
        description=_GROUPS,
        help="`marlaas VERB --help` describes it",
    )
    for module in modules:
        import_module(f".{module}", __package__).register(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    output.tolerate_any_terminal()
    output.mean_home("")
    words = sys.argv[1:] if argv is None else list(argv)
    output.mean_plain("--plain" in words)  # before what is wrong with the others is said
    args = build_parser(needed(words)).parse_args(words)
    try:
        code = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        output.silence_broken_pipe()
        return output.OK
    return code


def _open(args: argparse.Namespace) -> int:
    if args.version:
        from importlib.metadata import version

        return output.result(f"marlaas {version('marlaas')}")
    if args.web or (terminal.has_terminal() and not output.is_plain()):
        return terminal.run(args)
    home, plain = ["--home", args.home] if hasattr(args, "home") else [], ["--plain"] if output.is_plain() else []
    code = main([*home, *plain, "list"])
    if plain:
        output.talk("`marlaas watch` follows the tasks, and `marlaas --help` lists all verbs.")
    return code


def _run(args: argparse.Namespace) -> int:
    try:
        return int(args.run(args))
    except MarlaasError as error:
        output.complain_of(error)
        return error.exit_code
    except KeyboardInterrupt:
        return output.INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        output.complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
        _keep_traceback(args)
        return output.FAILED
    except Exception as error:
        where = _keep_traceback(args)
        output.complain(
            f"Something unexpected went wrong ({type(error).__name__}: {error}).",
            f"The details are in {where}; please report them." if where else "",
        )
        return output.FAILED


def _keep_traceback(args: argparse.Namespace) -> Path | None:
    """Append to the home's log folder, else write a new temporary file.

    Readable by its owner only; never follows a link.
    """
    import os
    import tempfile
    import time
    import traceback

    path = place_of(args).logs / "marlaas-errors.log"
    try:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            descriptor, name = tempfile.mkstemp(prefix="marlaas-errors-", suffix=".log")
            path = Path(name)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
            os.fchmod(descriptor, 0o600)
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")
    except OSError:
        return None
    return path


if __name__ == "__main__":
    sys.exit(main())
