"""`python -m kvbench` and the console script: a signal while modules are being read is no traceback either."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from kvbench.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
