"""`python -m kvbench` and the console script: a signal while modules are being read is no traceback either."""

from __future__ import annotations

import sys

from kvbench.errors import Interrupted
from kvbench.interrupts import stop_on_signals


def main() -> None:
    """Run the command line."""
    try:
        with stop_on_signals():
            from kvbench.cli import main as command_line

            command_line()
    except Interrupted as error:
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
