"""Runs ``make.main``: see there."""

import sys

from .make import main

sys.exit(main())
