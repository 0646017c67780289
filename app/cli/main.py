"""The entry point: parses, runs one verb, and turns the outcome into an exit code.

No traceback reaches a user: known errors are a sentence and a hint, unknown ones a sentence and the file with the
traceback."""

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
"""The modules of this package and their verbs: a command line loads the module of its verb and no other."""
_GROUPS = """\
begin     demo  submit  eval  env  base
watch     list  show  watch  wait  compare  logs  report  explain
steer     pause  resume  retry  cancel  extend  tenants
results   stats  metrics  matrix  rollouts  adapters  chat  api  serve
machine   engine  cluster  home  doctor  clean  simulate  keys  completion"""
WITH_A_VALUE = ("--home", "--theme")
WITHOUT = ("--plain", "--readonly", "--ascii", "--web", "--version")
"""Options that may stand before a verb."""


def needed(words: Sequence[str]) -> tuple[str, ...]:
    """The modules that a command line needs: its verb's, none for the application, all if that cannot be told."""
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
    """The whole command line, or as much of it as is in some modules of this package."""
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
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
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
    """Open the terminal application, or list the tasks if nobody sits at a terminal, or sees what is drawn there."""
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
    """Append the current traceback to the home's log folder, else write it to a new temporary file.

    Only its owner can read the file, and a link that somebody else has put there is never followed.
    """
    import os
    import time
    import traceback

    words = f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n"
    for opened in (_opened_log, _new_log):
        try:
            descriptor, path = opened(args)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                os.fchmod(descriptor, 0o600)
                file.write(words)
        except OSError:
            continue
        return path
    return None


def _opened_log(args: argparse.Namespace) -> tuple[int, Path]:
    """The file for tracebacks in the home, opened."""
    import os

    path = place_of(args).logs / "marlaas-errors.log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600), path


def _new_log(args: argparse.Namespace) -> tuple[int, Path]:
    """A new temporary file under a name that nobody can foresee."""
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix="marlaas-errors-", suffix=".log")
    return descriptor, Path(name)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> None:
        from importlib.metadata import version

        output.result(f"marlaas {version('marlaas')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
