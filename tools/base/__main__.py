"""Runs ``make.main``: see there."""

from .make import main

main()
