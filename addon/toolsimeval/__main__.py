"""``python -m toolsimeval``."""

from __future__ import annotations

import sys

from toolsimeval.command import main

if __name__ == "__main__":
    sys.exit(main())
