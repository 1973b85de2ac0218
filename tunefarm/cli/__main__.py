"""The `tunefarm` command, also `python -m tunefarm.cli`: turns exceptions into one line and an exit code."""

from __future__ import annotations

import logging
import sys

from tunefarm.cli.deadline import INTERRUPTED, end_in_time
from tunefarm.errors import TunefarmError


def main() -> None:
    """Runs the command line."""
    # A scheduler that wants its machine back is as good as a pressed key: what was measured is kept, and MLflow told.
    end_in_time()
    try:
        from tunefarm.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as e:
        print(f"error: {e.name} is not installed (pip install 'tunefarm[client]')", file=sys.stderr)
        sys.exit(2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except TunefarmError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
    except OSError as e:  # a full disk, a folder that has gone
        print(f"error: {e}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
