"""Entry point of ``python -m toolsim.eval``."""

from __future__ import annotations

import sys

from toolsim.eval.command import main

if __name__ == "__main__":
    sys.exit(main())
