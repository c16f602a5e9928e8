"""Runs the ``toolsim`` command as ``python -m toolsim``."""

import sys

if sys.version_info < (3, 12):  # noqa: UP036 - a checkout is not installed, so nothing has checked this.
    # Older versions of Python cannot parse the following imports.
    sys.exit(f"toolsim requires Python 3.12 or newer, but this is Python {sys.version.split()[0]} ({sys.executable})")

from toolsim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
