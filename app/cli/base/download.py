"""``--download``: fetches a base, or what is missing of it, before a verb goes on with it."""

from __future__ import annotations

from ... import output


def download(name: str) -> None:
    """Fetch what is missing, unless the cache has all. Raises ``ConfigError``."""
    from pathlib import Path

    from marlaas.engine.base import find_base, hub_name
    from marlaas.engine.errors import BaseModelError, ConfigError

    wanted = hub_name(name)
    if wanted is None or Path(name).is_dir():
        raise ConfigError(f"{name!r} is no name on the Hugging Face hub.", "Leave --download out, or give org/model.")
    try:
        find_base(name)
    except BaseModelError:
        from marlaas.engine.base import download_base

        output.talk(f"Downloading {wanted} from the Hugging Face hub; Ctrl-C stops, the same command goes on.")
        try:
            download_base(wanted)
        except KeyboardInterrupt:
            output.talk("Interrupted; the same command goes on with the files that are missing.")
            raise
    else:
        output.talk(f"{wanted} is in the Hugging Face cache already.")
