"""``python -m lllaunch``."""

from __future__ import annotations

import sys

from lllaunch.cli import main

if __name__ == "__main__":
    sys.exit(main())
