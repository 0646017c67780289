"""Every package of the root folders under its import name, so that a new folder is never missing from a wheel."""

from setuptools import find_packages, setup

ROOTS = ("app", "engine", "plugins")
setup(packages=[f"marlaas.{r}" for r in ROOTS] + [f"marlaas.{r}.{p}" for r in ROOTS for p in find_packages(r)])
