"""The lists of what is installed: whole, by hash, of the versions that were tested, and each package once."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import install, lock, steps


def pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==([\w.]+)", text)}


TESTED = pins(install.PINS.read_text())
LISTS = {path.stem: path.read_text() for path in sorted(steps.HASHES.glob("*.txt"))}


def test_each_list_says_what_it_is_for_and_how_it_is_made() -> None:
    assert LISTS.keys() == lock.USES.keys()
    for name, text in LISTS.items():
        assert text.startswith(f"# Made by `make lock`: {lock.USES[name]}.\n")
        assert "://" not in text and "--index" not in text


@pytest.mark.parametrize("name", LISTS)
def test_each_package_has_its_hashes(name: str) -> None:
    packages = lock.packages_of(LISTS[name])
    assert packages and len(packages) == len(pins(LISTS[name]))
    for lines in packages.values():
        assert re.search(r"\\\n    --hash=sha256:[0-9a-f]{64}", lines)


def test_versions_are_those_that_were_tested() -> None:
    for name in ("install", "serve", "api", "dev", "docs", "llama"):
        for package, version in pins(LISTS[name]).items():
            assert TESTED.get(package, version) == version
    listed = set().union(*(pins(text) for text in LISTS.values()))
    assert TESTED.keys() - listed == {"torch"}


def test_what_the_project_needs_is_in_the_lists() -> None:
    project = tomllib.loads((steps.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    base = pins(LISTS["install"]) | {"torch": TESTED["torch"]} | pins(LISTS["llama"])
    served = base | pins(LISTS["serve"])
    gated = base | pins(LISTS["api"])
    whole = served | gated | pins(LISTS["dev"])
    needs = (
        (project["dependencies"] + extras["cpu"], base),
        (extras["serve"], served),
        (extras["api"], gated),
        (extras["dev"], whole),
        (extras["docs"], base | pins(LISTS["docs"])),
    )
    for lines, there in needs:
        for requirement in map(Requirement, lines):
            assert requirement.specifier.contains(there[canonicalize_name(requirement.name)]), requirement


def test_packages_are_divided_by_the_step_that_installs_them() -> None:
    base = lock.packages_of(
        "a==1 \\\n    --hash=x\nllama-cpp-python==1\ntorch==2\ntriton==3\nnvidia-ml-py==4\npip==5\n"
    )
    serve, api = {"s": "s==1\n"}, {"h": "h==1\n"}
    files = lock.divided(base, base | serve, base | api, base | serve | api | {"d": "d==1\n"})
    assert {name: sorted(packages) for name, packages in files.items()} == {
        "install": ["a", "nvidia-ml-py"],
        "llama": ["llama-cpp-python"],
        "cuda": ["triton"],
        "serve": ["s"],
        "api": ["h"],
        "dev": ["d"],
    }
    assert files["install"]["a"] == "a==1 \\\n    --hash=x\n"
