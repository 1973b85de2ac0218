"""The command line. It owns the terminal, and it alone reads the environment."""

from __future__ import annotations

import logging
import sys

from tunefarm.errors import TunefarmError

EXIT_CODES = """Exit codes: 0 done; 1 partial (some study has no winner); 2 something to mend in what you wrote or asked
for; 3 a machine, process or service failed; 130 interrupted."""


def main() -> None:
    """The `tunefarm` command."""
    try:
        from tunefarm.cli.app import app
    except ModuleNotFoundError as e:
        print(f"error: {e.name} is not installed (pip install 'tunefarm[client]')", file=sys.stderr)
        sys.exit(2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except TunefarmError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        print("interrupted: what was measured is in the ledger; the same command goes on from there", file=sys.stderr)
        sys.exit(130)
