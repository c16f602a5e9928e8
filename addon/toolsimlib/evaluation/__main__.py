"""``python -m toolsimlib.evaluation``."""

from __future__ import annotations

import sys

from toolsimlib.evaluation.command import main

if __name__ == "__main__":
    sys.exit(main())
