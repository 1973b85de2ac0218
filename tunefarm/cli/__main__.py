"""The `tunefarm` command, also `python -m tunefarm.cli`: turns exceptions into one line and an exit code."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType

from tunefarm.cli.packages import missing
from tunefarm.errors import TunefarmError


def main() -> None:
    """Runs the command line."""
    # A scheduler that wants its machine back is as good as a pressed key: what was measured is kept, and MLflow told.
    signal.signal(signal.SIGTERM, _stop)
    try:
        from tunefarm.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as e:
        print(f"error: {missing(e) or e}", file=sys.stderr)
        sys.exit(2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except TunefarmError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
    except ModuleNotFoundError as e:
        told = missing(e)
        if told is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        sys.exit(told.exit_code)
    except OSError as e:  # a full disk, a folder that has gone
        print(f"error: {e}", file=sys.stderr)
        sys.exit(3)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
