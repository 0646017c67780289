"""``env allow``: shows what a plugin wants installed, asks once for each set of libraries, and installs it.

The virtual environment and the person's consent are files in the home; an engine that runs notices them by itself. No
code of the plugin runs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..terminal import agreed
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.environments import Source, Venv
    from marlaas.engine.home import EnvironmentSettings, Home


def register(family: Verbs) -> None:
    """Add the verb."""
    allow = add_verb(
        family,
        "allow",
        run,
        "see and allow the libraries that an environment needs, and install them",
        epilog="Libraries run with your rights, and some run code while they are installed. Plugins that need the same"
        " set share it, and you are asked once.",
    )
    allow.add_argument("name", metavar="NAME", help="a plugin or one of its environments, or the path of its file")
    allow.add_argument("--yes", action="store_true", help="allow it without being asked")


def run(args: argparse.Namespace) -> int:
    """Show the list, ask, install."""
    from marlaas.engine.daemon import control
    from marlaas.engine.environments import Refused, needs_of, said
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.home import load_settings

    home = home_of(args)
    control.make_home(home, notice=output.talk)
    settings = load_settings(home).environments
    source = _source(args.name, home)
    try:
        _, venv = needs_of(source, home.venvs)
    except Refused as error:
        raise ConfigError(f"{source.name} cannot run here: {said(error.failure)}.") from error
    if venv is None:
        output.talk(f"{line(source.name)} needs no libraries: it runs on marlaas's own Python.")
        return output.OK
    _show(source.name, venv, settings)
    if venv.built:
        output.talk("They are installed; nothing is to be done.")
        return output.OK
    if settings.allow == "never":
        raise ConfigError(
            'Nothing may be installed: `allow = "never"` stands under [environments] in marlaas.toml.',
            'Change it to "ask" to be asked.',
        )
    if not args.yes and not agreed("Install them?"):
        output.talk("Nothing was installed.")
        return output.FAILED
    return _install(source.name, venv, settings)


def _source(name: str, home: Home) -> Source:
    """The plugin's files, read without running them."""
    from marlaas.engine.environments import SourceError, meant, plugin_paths, read_source
    from marlaas.engine.errors import ConfigError, EnvironmentMissing
    from marlaas.engine.home import BUNDLED_PLUGINS
    from marlaas.engine.spec import nearest

    wish = meant(name, [BUNDLED_PLUGINS, home.plugins])
    paths = {plugin: path for folder in wish.folders for plugin, path in plugin_paths(folder).items()}
    if wish.plugin not in paths:
        raise EnvironmentMissing(f"There is no environment plugin {name!r}.", nearest(name, sorted(paths)))
    try:
        return read_source(paths[wish.plugin])
    except SourceError as error:
        raise ConfigError(f"cannot be read: {error}.", where=str(paths[wish.plugin])) from error


def _show(plugin: str, venv: Venv, settings: EnvironmentSettings) -> None:
    """Print what would be installed, from where and where to. The packages' own requirements come along, as always."""
    import os

    from marlaas.engine.environments import in_words

    output.result(f"{line(plugin)} needs, on Python {venv.base.version}:")
    for dependency in venv.dependencies:
        output.result(f"  {line(dependency)}")
    if venv.dependencies:
        output.result(f"with what they need themselves, from {line(in_words(settings, os.environ))}.")
    output.result(f"Place: {line(str(venv.folder))}")


def _install(plugin: str, venv: Venv, settings: EnvironmentSettings) -> int:
    """Install, then remember the consent; an engine that runs serves the plugin, or tries again and says why not."""
    import asyncio
    import time

    from marlaas.engine.environments import BuildFailed, build
    from marlaas.engine.errors import EnvironmentFailure

    began = time.monotonic()
    output.talk(f"Installing; large libraries take minutes. The log is {line(str(venv.log))}.")
    try:
        asyncio.run(build(venv, settings, lambda text: output.talk(f"  {line(text, 100)}") if text.strip() else None))
    except BuildFailed as error:
        venv.allow()
        raise EnvironmentFailure(
            f"The libraries of {plugin} cannot be installed: {error}.", "The consent is kept; the command tries again."
        ) from error
    venv.allow()
    output.talk(f"Installed in {time.monotonic() - began:.1f} s. An engine that runs serves {line(plugin)} at once.")
    return output.OK
